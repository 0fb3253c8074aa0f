// How the bytes of a convolution end. No torch.
#pragma once
#include <cmath>

#include "conv/cpu/loops/conv_args.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

// How a tile ends: with bytes, or with floats. Values are clamped before they become bytes. Where none, divided by the scale,
// passes int32, the bytes are clamped instead. Where the result has all values of uint8, they saturate anyway.
enum Ending { kClampValues, kClampBytes, kSaturate, kAddResidual, kFloats };

// Returns how bytes of the channels channel <= c < channel + count end. NaN counts as if it passed int32.
inline Ending byte_ending(const ConvArgs& a, int64_t channel, int64_t count) {
  constexpr float kLimit = 1 << 30;
  const OutputQParams& y = a.y_qparams;
  const float most = static_cast<float>(a.shape.k_blocks() * a.shape.k_block_bytes()) * (255 * 128);
  const float zero_point = std::fabs(static_cast<float>(a.residual_zero_point));
  const float residual = a.residual == nullptr ? 0 : (256 + zero_point) * std::fabs(a.residual_scale);
  const float inv_scale = y.inv_scale;
  int passes = 0;
  for (int64_t c = channel; c < channel + count; ++c) {
    const float sum = most + std::fabs(static_cast<float>(a.zero_point_correction[c]));
    passes |= !((sum * std::fabs(a.scale[c]) + std::fabs(a.bias[c]) + residual) * inv_scale < kLimit);
  }
  if (passes != 0) return kClampValues;
  const float zero = static_cast<float>(y.zero_point);
  return y.low + zero == 0 && y.high + zero == 255 ? kSaturate : kClampBytes;
}

}  // namespace
}  // namespace FXQ_ISA
}  // namespace fxquant
