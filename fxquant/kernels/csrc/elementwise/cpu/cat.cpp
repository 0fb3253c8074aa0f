#include "elementwise/cat.h"

#include <torch/csrc/stable/library.h>

#include "cpu/launch.h"
#include "elementwise/cpu/loops/cat.h"

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
  const int64_t count = static_cast<int64_t>(parts.size());
  const CatArgs args{parts.data(), count, row, cat.y.mutable_data_ptr(), cat.y.scalar_type() == ScalarType::Char,
                     cat.y_qparams};
  launch(args, cat.y.numel(), kGrain,
         [](const CatArgs& a, int64_t begin, int64_t end, void*) { FXQ_LOOP(cat_loop)(a, begin, end); });
  return cat.y;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fxquant, CPU, m) { m.impl("cat", TORCH_BOX(&cat_cpu)); }

}  // namespace fxquant
