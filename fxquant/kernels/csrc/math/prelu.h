// A leaky ReLU of float values. Shared by the CPU and CUDA kernels.
#pragma once
#include "math/affine.h"

namespace fxquant {

FXQ_HOST_DEVICE float prelu(float real, float slope) { return real < 0 ? real * slope : real; }

}  // namespace fxquant
