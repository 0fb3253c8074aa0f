// float16 and bfloat16 as bits, to and from float: exact one way, to nearest even the other. Branchless, so that loops
// over them vectorise, and the same on the CPU and in CUDA.
#pragma once
#include <cstdint>
#include <cstring>

#include "common/types.h"
#include "math/affine.h"

namespace fxquant {

FXQ_HOST_DEVICE float float_of_bits(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

FXQ_HOST_DEVICE uint32_t bits_of_float(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

FXQ_HOST_DEVICE float float_from_bfloat16(uint16_t x) { return float_of_bits(static_cast<uint32_t>(x) << 16); }

// A float whose upper 16 bits are the nearest bfloat16; the lower ones are anything.
FXQ_HOST_DEVICE uint32_t rounded_to_bfloat16(float x) {
  const uint32_t bits = bits_of_float(x);
  const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  return x == x ? rounded : 0x7fc00000u;
}

FXQ_HOST_DEVICE uint16_t bfloat16_from_float(float x) { return static_cast<uint16_t>(rounded_to_bfloat16(x) >> 16); }

// The exponent is moved by multiplying with 2^112, which also normalises subnormals; inf and NaN get theirs back.
FXQ_HOST_DEVICE float float_from_half(uint16_t x) {
  const uint32_t magnitude = static_cast<uint32_t>(x & 0x7fffu) << 13;
  const uint32_t finite = bits_of_float(float_of_bits(magnitude) * float_of_bits(0x77800000u));
  const uint32_t bits = magnitude >= 0x0f800000u ? magnitude | 0x7f800000u : finite;
  return float_of_bits(bits | (static_cast<uint32_t>(x & 0x8000u) << 16));
}

FXQ_HOST_DEVICE uint16_t half_from_float(float x) {
  const uint32_t bits = bits_of_float(x);
  const uint32_t magnitude = bits & 0x7fffffffu;
  // Below 2^-14 the result is subnormal: adding 0.5 lets the float adder round to its multiples of 2^-24.
  const uint32_t subnormal = bits_of_float(float_of_bits(magnitude) + 0.5f) - 0x3f000000u;
  const uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
  const uint32_t infinite = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  const uint32_t result = magnitude >= 0x477ff000u ? infinite : finite;
  return static_cast<uint16_t>(result | ((bits >> 16) & 0x8000u));
}

// A 16-bit float as it lies in memory.
template <Float type>
struct Short {
  uint16_t bits;
};
using Half = Short<Float::kHalf>;
using BFloat16 = Short<Float::kBFloat16>;

FXQ_HOST_DEVICE float to_float(Half x) { return float_from_half(x.bits); }
FXQ_HOST_DEVICE float to_float(BFloat16 x) { return float_from_bfloat16(x.bits); }
FXQ_HOST_DEVICE void from_float(float x, Half& y) { y.bits = half_from_float(x); }
FXQ_HOST_DEVICE void from_float(float x, BFloat16& y) { y.bits = bfloat16_from_float(x); }

}  // namespace fxquant
