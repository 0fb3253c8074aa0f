#include "conv/cuda/conv.h"

namespace fxquant {
namespace {

Tensor conv2d_cuda(const ConvCall& call) { return conv_cuda(checked_conv("fxquant::conv2d", call, 2)); }
Tensor conv3d_cuda(const ConvCall& call) { return conv_cuda(checked_conv("fxquant::conv3d", call, 3)); }

}  // namespace

FXQ_CUDA_LIBRARY(m) {
  m.impl("conv2d", FXQ_KERNEL(conv2d_cuda));
  m.impl("conv3d", FXQ_KERNEL(conv3d_cuda));
}

}  // namespace fxquant
