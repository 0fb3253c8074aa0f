#include <torch/csrc/stable/library.h>

#include "conv/cuda/conv.h"

namespace fxquant {
namespace {

Tensor linear_cuda(const Tensor& x, int64_t x_zero_point, const Tensor& weight, const Tensor& start, const Tensor& scale,
                  const Tensor& bias, const std::optional<Tensor>& residual, double residual_scale,
                  int64_t residual_zero_point, double y_scale, int64_t y_zero_point, int64_t quant_min,
                  int64_t quant_max, ScalarType dtype) {
  const ConvCall call{"fxquant::linear", x, x_zero_point, weight, start, scale, bias, residual, residual_scale,
                      residual_zero_point, y_scale, y_zero_point, quant_min, quant_max, dtype};
  return conv_cuda(prepare_linear(call));
}

}  // namespace

FXQ_CUDA_LIBRARY(m) { m.impl("linear", TORCH_BOX(&linear_cuda)); }

}  // namespace fxquant
