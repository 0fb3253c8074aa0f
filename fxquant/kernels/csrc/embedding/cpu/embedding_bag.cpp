#include "embedding/embedding_bag.h"

#include "embedding/cpu/lookup.h"
#include "embedding/cpu/loops/embedding_bag.h"

namespace fxquant {
namespace {

Tensor embedding_bag_cpu(const EmbeddingBagCall& call) {
  const EmbeddingBag e = prepare_embedding_bag(call);
  check_index_values(EmbeddingBag::kOp, e.indices, e.table.rows());
  check_offset_values(EmbeddingBag::kOp, e.offsets, e.indices.numel());
  const EmbeddingBagArgs args{e.table.table, e.bags(), e.y.mutable_data_ptr<float>()};
  const auto loop = FXQ_LOOP(embedding_bag_loop);
  const int64_t bags = e.y.size(0);
  const int64_t work = call.columns * (e.indices.numel() / std::max<int64_t>(bags, 1) + 1);  // of a bag, on average
  torch::stable::parallel_for(0, bags, std::max<int64_t>(kGrain / std::max<int64_t>(work, 1), 1),
                              [&](int64_t begin, int64_t end) { loop(args, begin, end); });
  return e.y;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fxquant, CPU, m) { m.impl("embedding_bag", FXQ_KERNEL(embedding_bag_cpu)); }

}  // namespace fxquant
