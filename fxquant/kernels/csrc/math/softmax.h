// Exponentials as whole steps, so that their sum is exact in any order.
#pragma once
#include "math/half.h"

namespace fxquant {

// Of a row whose values are all x <= 0, their exponentials are stored as multiples of 2^-30; int64 holds 2^33 of them.
constexpr int32_t kExpBits = 30;

// e^x in steps of 2^-kExpBits, for x <= 0; below 2^-40 and for NaN it is 0. e^x = 2^whole * 2^part with
// -0.5 <= part <= 0.5, and 2^part by its series, which is off by 1.2e-7 of it at most.
FXQ_HOST_DEVICE int32_t exp_steps(float x) {
  const float doublings = x * 1.4426950408889634f;
  const float power = doublings > -40.0f ? doublings : -40.0f;
  const float whole = round_even(power);
  const float part = power - whole;
  float y = 0.00015403530393381608f;
  y = y * part + 0.0013333558146428443f;
  y = y * part + 0.009618129107628477f;
  y = y * part + 0.05550410866482158f;
  y = y * part + 0.2402265069591007f;
  y = y * part + 0.6931471805599453f;
  y = y * part + 1.0f;
  const uint32_t exponent = static_cast<uint32_t>(static_cast<int32_t>(whole) + kExpBits + 127);
  return static_cast<int32_t>(round_even(y * float_of_bits(exponent << 23)));
}

// A row as its integers in the order of the floats: the largest and the smallest say whether it holds NaN or infinity.
struct KeyRange {
  int32_t smallest;
  int32_t largest;
};

constexpr int32_t kKeyOfInfinity = 0x7f800000;
constexpr int32_t kKeyOfMinusInfinity = -0x7f800001;

// What the row's exponentials are multiplied with to sum to 1. NaN, where the row holds NaN or infinity, or nothing but
// minus infinity: that is 0 / 0, unless `safe` says that it is 0.
FXQ_HOST_DEVICE float softmax_factor(int64_t sum, const KeyRange& keys, bool safe) {
  const bool masked = keys.smallest == kKeyOfMinusInfinity && keys.largest == kKeyOfMinusInfinity;
  const bool finite = keys.smallest >= kKeyOfMinusInfinity && keys.largest < kKeyOfInfinity;
  const float factor = static_cast<float>(1.0 / static_cast<double>(sum));
  return masked ? (safe ? 0.0f : float_of_bits(0x7fc00000u)) : finite ? factor : float_of_bits(0x7fc00000u);
}

}  // namespace fxquant
