// Reduces rows of a table to one for each bag. A thread computes one column of one bag: for index of the bag, in order.
#include "embedding/embedding_bag.h"

#include "cuda/launch.h"
#include "embedding/cuda/lookup.h"

namespace fxquant {
namespace {

struct ReduceColumn {
  DeviceTable table;
  Bags bags;
  int64_t count;  // of indices
  float* y;

  // Offsets are clamped to the indices, since they are not checked on the host.
  FXQ_MEMBER int64_t clamped_offset(int64_t bag) const {
    const int64_t at = bags.offsets[bag];
    return at < 0 ? 0 : at > count ? count : at;
  }

  FXQ_MEMBER void operator()(int64_t i) const {
    const int64_t columns = table.table.columns;
    const int64_t bag = i / columns;
    int64_t used = 0;
    float sum = 0;
    const int64_t end = clamped_offset(bag + 1);
    for (int64_t k = clamped_offset(bag); k < end; ++k) {
      if (bags.indices[k] == bags.padding_idx) continue;
      const float value = table.at(bags.indices[k], i % columns);
      if (bags.mode == BagMode::kMax) {
        sum = used == 0 || value > sum ? value : sum;
      } else {
        sum = sum + (bags.weights ? value * bags.weights[k] : value);
      }
      ++used;
    }
    y[i] = bags.mode == BagMode::kMean && used > 0 ? sum / static_cast<float>(used) : sum;
  }
};

Tensor embedding_bag_cuda(const EmbeddingBagCall& call) {
  const EmbeddingBag e = prepare_embedding_bag(call);
  const DeviceTable table{e.table.table, e.table.rows()};
  for_each(e.y, e.y.numel(), ReduceColumn{table, e.bags(), e.indices.numel(), e.y.mutable_data_ptr<float>()});
  return e.y;
}

}  // namespace

FXQ_CUDA_LIBRARY(m) { m.impl("embedding_bag", FXQ_KERNEL(embedding_bag_cuda)); }

}  // namespace fxquant
