#include "conv/cpu/conv.h"

namespace fxquant {
namespace {

Tensor conv2d_cpu(const ConvCall& call) { return conv_cpu(prepare_conv("fxquant::conv2d", call, 2)); }
Tensor conv3d_cpu(const ConvCall& call) { return conv_cpu(prepare_conv("fxquant::conv3d", call, 3)); }

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fxquant, CPU, m) {
  m.impl("conv2d", FXQ_KERNEL(conv2d_cpu));
  m.impl("conv3d", FXQ_KERNEL(conv3d_cpu));
}

}  // namespace fxquant
