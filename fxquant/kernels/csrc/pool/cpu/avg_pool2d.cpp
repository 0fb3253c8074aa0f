#include <torch/csrc/stable/library.h>

#include "pool/cpu/average.h"

namespace fxquant {
namespace {

Tensor avg_pool2d_cpu(const Tensor& x, const std::vector<int64_t>& kernel_size, const std::vector<int64_t>& stride,
                      const std::vector<int64_t>& padding, bool ceil_mode, bool count_include_pad,
                      std::optional<int64_t> divisor_override, double x_scale, int64_t x_zero_point, double scale,
                      int64_t zero_point, int64_t quant_min, int64_t quant_max) {
  return average_cpu(prepare_avg_pool2d(x, kernel_size, stride, padding, ceil_mode, count_include_pad,
                                        divisor_override, x_scale, x_zero_point, scale, zero_point, quant_min,
                                        quant_max));
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fxquant, CPU, m) { m.impl("avg_pool2d", TORCH_BOX(&avg_pool2d_cpu)); }

}  // namespace fxquant
