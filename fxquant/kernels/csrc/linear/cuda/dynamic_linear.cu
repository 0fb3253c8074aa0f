#include "linear/dynamic_linear.h"

#include "conv/cuda/conv.h"
#include "quantize/cuda/quantize_per_token.h"

namespace fxquant {
namespace {

// The qparams stay on the device.
Tensor dynamic_linear_cuda(const DynamicLinearCall& call) {
  const DynamicLinear c(call);
  quantize_rows_cuda(c.input);
  return conv_cuda(c.product);
}

}  // namespace

FXQ_CUDA_LIBRARY(m) { m.impl("dynamic_linear", FXQ_KERNEL(dynamic_linear_cuda)); }

}  // namespace fxquant
