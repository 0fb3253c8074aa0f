#include <torch/csrc/stable/library.h>

#include "conv/cpu/conv.h"

namespace fxquant {
namespace {

Tensor conv2d_cpu(const Tensor& x, int64_t x_zero_point, const Tensor& weight, const Tensor& start, const Tensor& scale,
                  const Tensor& bias, const std::vector<int64_t>& kernel_size, const std::vector<int64_t>& stride,
                  const std::vector<int64_t>& padding, const std::vector<int64_t>& dilation, int64_t groups,
                  const std::optional<Tensor>& residual, double residual_scale, int64_t residual_zero_point,
                  double y_scale, int64_t y_zero_point, int64_t quant_min, int64_t quant_max, ScalarType dtype) {
  const ConvCall call{"fxquant::conv2d", x, x_zero_point, weight, start, scale, bias, residual, residual_scale,
                      residual_zero_point, y_scale, y_zero_point, quant_min, quant_max, dtype};
  return conv_cpu(prepare_conv(call, 2, kernel_size, stride, padding, dilation, groups));
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fxquant, CPU, m) { m.impl("conv2d", TORCH_BOX(&conv2d_cpu)); }

}  // namespace fxquant
