// A convolution that conv/conv.h has checked, on the CPU: what the bindings of conv2d, conv3d and linear share.
#pragma once
#include "conv/conv.h"

namespace fxquant {

// Launches the loop that fits the convolution, and returns its result.
Tensor conv_cpu(const CheckedConv& c);

}  // namespace fxquant
