#include "embedding/embedding.h"

#include "embedding/cpu/lookup.h"
#include "embedding/cpu/loops/embedding.h"

namespace fxquant {
namespace {

Tensor embedding_cpu(const EmbeddingCall& call) {
  const Embedding e = prepare_embedding(call);
  check_index_values(Embedding::kOp, e.indices, e.table.rows());
  const EmbeddingArgs args{e.table.table, e.indices.const_data_ptr<int64_t>(), e.y.mutable_data_ptr<float>()};
  const auto loop = FXQ_LOOP(embedding_loop);
  torch::stable::parallel_for(0, e.indices.numel(), std::max<int64_t>(kGrain / std::max<int64_t>(call.columns, 1), 1),
                              [&](int64_t begin, int64_t end) { loop(args, begin, end); });
  return e.y;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fxquant, CPU, m) { m.impl("embedding", FXQ_KERNEL(embedding_cpu)); }

}  // namespace fxquant
