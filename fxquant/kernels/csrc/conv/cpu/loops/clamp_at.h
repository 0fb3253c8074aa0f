// Where the values of a convolution are clamped to the bounds of its result: as floats, as bytes, or nowhere. No torch.
#pragma once
#include <cmath>

#include "conv/cpu/loops/conv_args.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

enum ClampAt {
  kClampValues,  // float values are clamped before they become bytes
  kClampBytes,   // bytes are clamped: no float value, divided by the scale, can leave int32
  kSaturate,     // nothing is clamped: the result has all values of uint8, at whose ends the conversion to bytes saturates
  kAddResidual,  // as kClampValues, after a residual was added: for depthwise_three_taps.h alone
  kFloats,       // nothing is clamped: the result is float
};

// Returns where the channels channel <= c < channel + count of a result of bytes are clamped. NaN counts as if it left int32.
inline ClampAt clamp_of_bytes(const ConvArgs& a, int64_t channel, int64_t count) {
  constexpr float kLimit = 1 << 30;
  const OutputQParams& y = a.y_qparams;
  const float most = static_cast<float>(a.shape.k_blocks() * a.shape.k_block_bytes()) * (255 * 128);
  const float zero_point = std::fabs(static_cast<float>(a.residual_zero_point));
  const float residual = a.residual == nullptr ? 0 : (256 + zero_point) * std::fabs(a.residual_scale);
  const float inv_scale = y.inv_scale;
  int may_leave_int32 = 0;
  for (int64_t c = channel; c < channel + count; ++c) {
    const float sum = most + std::fabs(static_cast<float>(a.zero_point_correction[c]));
    may_leave_int32 |= !((sum * std::fabs(a.scale[c]) + std::fabs(a.bias[c]) + residual) * inv_scale < kLimit);
  }
  if (may_leave_int32 != 0) return kClampValues;
  const float zero = static_cast<float>(y.zero_point);
  return y.low + zero == 0 && y.high + zero == 255 ? kSaturate : kClampBytes;
}

}  // namespace
}  // namespace FXQ_ISA
}  // namespace fxquant
