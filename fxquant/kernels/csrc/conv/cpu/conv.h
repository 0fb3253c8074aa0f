// A convolution that conv/conv.h has checked, on the CPU: what the bindings of conv2d, conv3d and linear share.
#pragma once
#include "conv/conv.h"

namespace fxquant {

// Whether the loop that fits the convolution reads an x whose pixels lie further apart than their channels: a part of the channels
// of a tensor. The others get a dense copy.
bool reads_steps(const ConvShape& shape);

// Launches the loop that fits the convolution, and returns its result.
Tensor conv_cpu(const CheckedConv& c);

}  // namespace fxquant
