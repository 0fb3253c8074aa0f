// Dequantizes rows of a table, which lie one after the other. A thread computes one value of the result.
#include "embedding/embedding.h"

#include "cuda/launch.h"
#include "embedding/cuda/lookup.h"

namespace fxquant {
namespace {

struct LookUpRow {
  DeviceTable table;
  const int64_t* indices;
  float* y;

  FXQ_MEMBER void operator()(int64_t i) const {
    const int64_t columns = table.table.columns;
    y[i] = table.at(indices[i / columns], i % columns);
  }
};

Tensor embedding_cuda(const EmbeddingCall& call) {
  const Embedding e = prepare_embedding(call);
  const DeviceTable table{e.table.table, e.table.rows()};
  for_each(e.y, e.y.numel(), LookUpRow{table, e.indices.const_data_ptr<int64_t>(), e.y.mutable_data_ptr<float>()});
  return e.y;
}

}  // namespace

FXQ_CUDA_LIBRARY(m) { m.impl("embedding", FXQ_KERNEL(embedding_cuda)); }

}  // namespace fxquant
