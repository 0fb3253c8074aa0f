#include <torch/csrc/stable/library.h>

#include "cuda/launch.h"
#include "embedding/cuda/lookup.h"
#include "embedding/lookup_checks.h"

namespace fxquant {
namespace {

constexpr const char* kOp = "fxquant::embedding_bag";

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

Tensor embedding_bag_cuda(const Tensor& weight, const Tensor& scale, const Tensor& zero_point, const Tensor& indices_,
                          const Tensor& offsets_, int64_t bits, int64_t columns, int64_t mode_,
                          const std::optional<Tensor>& per_sample_weights, std::optional<int64_t> padding_idx) {
  const CheckedTable checked(kOp, weight, scale, zero_point, bits, columns);
  const BagMode mode = bag_mode(kOp, mode_);
  const Tensor indices = checked_indices(kOp, "indices", indices_, checked.weight);
  const Tensor offsets = checked_indices(kOp, "offsets", offsets_, checked.weight);
  const int64_t bags = check_bags(kOp, indices, offsets);
  std::optional<Tensor> weights;
  if (per_sample_weights.has_value()) weights = checked_sample_weights(kOp, *per_sample_weights, indices, mode);
  const Tensor y = torch::stable::new_empty(checked.scale, {bags, columns});
  for_each(y, y.numel(),
           ReduceColumn{{checked.table, checked.rows()},
                        {indices.const_data_ptr<int64_t>(), offsets.const_data_ptr<int64_t>(),
                         weights.has_value() ? weights->const_data_ptr<float>() : nullptr, padding_idx.value_or(-1),
                         mode},
                        indices.numel(),
                        y.mutable_data_ptr<float>()});
  return y;
}

}  // namespace

FXQ_CUDA_LIBRARY(m) { m.impl("embedding_bag", TORCH_BOX(&embedding_bag_cuda)); }

}  // namespace fxquant
