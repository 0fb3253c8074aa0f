#include <torch/csrc/stable/library.h>

#include "embedding/cpu/lookup.h"
#include "embedding/cpu/loops/embedding.h"

namespace fxquant {
namespace {

constexpr const char* kOp = "fxquant::embedding";

Tensor embedding_cpu(const Tensor& weight, const Tensor& scale, const Tensor& zero_point, const Tensor& indices_,
                     int64_t bits, int64_t columns) {
  const CheckedTable checked(kOp, weight, scale, zero_point, bits, columns);
  const Tensor indices = checked_indices(kOp, "indices", indices_, checked.weight);
  check_index_values(kOp, indices, checked.rows());
  std::vector<int64_t> sizes(indices.sizes().begin(), indices.sizes().end());
  sizes.push_back(columns);
  const Tensor y = empty_as(checked.scale, sizes, false);
  prefer_huge_pages(y);
  const EmbeddingArgs args{checked.table, indices.const_data_ptr<int64_t>(), y.mutable_data_ptr<float>()};
  const auto loop = FXQ_LOOP(embedding_loop);
  torch::stable::parallel_for(0, indices.numel(), std::max<int64_t>(kGrain / std::max<int64_t>(columns, 1), 1),
                              [&](int64_t begin, int64_t end) { loop(args, begin, end); });
  return y;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fxquant, CPU, m) { m.impl("embedding", TORCH_BOX(&embedding_cpu)); }

}  // namespace fxquant
