#include "../common/cat.h"

#include <torch/csrc/stable/library.h>

#include "loops/cat.h"

namespace fxquant {
namespace {

Tensor cat_cpu(const std::vector<Tensor>& tensors, const std::vector<double>& scales,
               const std::vector<int64_t>& zero_points, int64_t dim, double scale, int64_t zero_point,
               int64_t quant_min, int64_t quant_max) {
  const Cat cat =
      prepare_cat("fxquant::cat", tensors, scales, zero_points, dim, scale, zero_point, quant_min, quant_max);
  std::vector<CatPart> parts;
  int64_t row = 0;
  for (size_t i = 0; i < cat.parts.size(); ++i) {
    const int64_t length = cat.length(i);
    if (length == 0) continue;
    parts.push_back({cat.parts[i].const_data_ptr(), row, length, cat.scales[i], cat.zero_points[i], cat.copied[i]});
    row += length;
  }
  const CatArgs args{parts.data(), row, cat.y.mutable_data_ptr(), cat.y.scalar_type() == ScalarType::Char, cat.grid};
  const auto loop = FXQ_LOOP(cat_loop);
  torch::stable::parallel_for(0, cat.y.numel(), kGrain, [&](int64_t begin, int64_t end) { loop(args, begin, end); });
  return cat.y;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fxquant, CPU, m) { m.impl("cat", TORCH_BOX(&cat_cpu)); }

}  // namespace fxquant
