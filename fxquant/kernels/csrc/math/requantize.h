// The last step of every int8 operator: a float value to the quantized byte that is stored. Shared by the CPU and CUDA kernels.
#pragma once
#include <cstdint>
#include <cstring>

#include "math/affine.h"

namespace fxquant {

// The qparams of a result, per tensor. low and high are quant_min and quant_max, as distances from the zero point.
struct OutputQParams {
  float inv_scale;  // 1 / scale, in float32
  float low;
  float high;
  int32_t zero_point;
};

// The limits of a float result, which none has by default. NaN stays.
struct FloatLimits {
  float low = -HUGE_VALF;
  float high = HUGE_VALF;
};

FXQ_HOST_DEVICE float clamp_float(float real, const FloatLimits& limits) {
  const float at_least_low = real < limits.low ? limits.low : real;
  return at_least_low > limits.high ? limits.high : at_least_low;
}

// Half to even is what float32 addition does by itself once the unit of the last place is 1: between 2^23 and 2^24.
// 1.5 * 2^23 puts |steps| < 2^22 there, and is even itself.
constexpr float kRoundingShift = 12582912.0f;

FXQ_HOST_DEVICE uint32_t float_bits(float x) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(x);
#else
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
#endif
}

// clamp(round(real / scale) + zero_point, quant_min, quant_max) as the bits of a uint8 or int8; NaN gives quant_min.
// Clamping first is the same, since rounding never falls and leaves the integers low and high alone; then the integer
// stands in the low bits of the shifted sum, two's complement, and only its last eight bits are wanted.
FXQ_HOST_DEVICE uint8_t requantize(float real, const OutputQParams& y) {
  float steps = real * y.inv_scale;
  steps = steps > y.low ? steps : y.low;
  steps = steps < y.high ? steps : y.high;
  return static_cast<uint8_t>(float_bits(steps + kRoundingShift) + static_cast<uint32_t>(y.zero_point));
}

}  // namespace fxquant
