#include <torch/csrc/stable/library.h>

#include "embedding/cpu/lookup.h"
#include "embedding/cpu/loops/embedding_bag.h"

namespace fxquant {
namespace {

constexpr const char* kOp = "fxquant::embedding_bag";

Tensor embedding_bag_cpu(const Tensor& weight, const Tensor& scale, const Tensor& zero_point, const Tensor& indices_,
                         const Tensor& offsets_, int64_t bits, int64_t columns, int64_t mode_,
                         const std::optional<Tensor>& per_sample_weights, std::optional<int64_t> padding_idx) {
  const CheckedTable checked(kOp, weight, scale, zero_point, bits, columns);
  const BagMode mode = bag_mode(kOp, mode_);
  const Tensor indices = checked_indices(kOp, "indices", indices_, checked.weight);
  const Tensor offsets = checked_indices(kOp, "offsets", offsets_, checked.weight);
  const int64_t bags = check_bags(kOp, indices, offsets);
  check_index_values(kOp, indices, checked.rows());
  check_offset_values(kOp, offsets, indices.numel());
  std::optional<Tensor> weights;
  if (per_sample_weights.has_value()) weights = checked_sample_weights(kOp, *per_sample_weights, indices, mode);
  const Tensor y = empty_as(checked.scale, {bags, columns}, false);
  prefer_huge_pages(y);
  const EmbeddingBagArgs args{checked.table,
                              {indices.const_data_ptr<int64_t>(), offsets.const_data_ptr<int64_t>(),
                               weights.has_value() ? weights->const_data_ptr<float>() : nullptr,
                               padding_idx.value_or(-1), mode},
                              y.mutable_data_ptr<float>()};
  const auto loop = FXQ_LOOP(embedding_bag_loop);
  const int64_t work = columns * (indices.numel() / std::max<int64_t>(bags, 1) + 1);  // of a bag, on average
  torch::stable::parallel_for(0, bags, std::max<int64_t>(kGrain / std::max<int64_t>(work, 1), 1),
                              [&](int64_t begin, int64_t end) { loop(args, begin, end); });
  return y;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fxquant, CPU, m) { m.impl("embedding_bag", TORCH_BOX(&embedding_bag_cpu)); }

}  // namespace fxquant
