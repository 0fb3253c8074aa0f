// A row of numbers as whole steps, so that its mean and variance are exact in any order; and what is made of them.
#pragma once
#include "math/half.h"

namespace fxquant {

// Steps of a row are at most 2^kStepBits, so the squares of 2^19 of them fit an int64.
constexpr int32_t kStepBits = 22;
constexpr int64_t kMostColumns = int64_t{1} << 19;

// Steps are multiples of 2^-k, with the largest k at which the row's largest magnitude (its bits) fits; at most 126.
FXQ_HOST_DEVICE int32_t step_exponent(uint32_t largest) {
  const int32_t field = static_cast<int32_t>(largest >> 23);
  const int32_t k = kStepBits - 1 + 127 - (field > 1 ? field : 1);
  return k < 126 ? k : 126;
}

FXQ_HOST_DEVICE float power_of_two(int32_t k) { return float_of_bits(static_cast<uint32_t>(k + 127) << 23); }

// eps in squared steps of 2^-k: times 2^2k, exactly.
FXQ_HOST_DEVICE double eps_in_steps(double eps, int32_t k) {
  const double factor = static_cast<double>(power_of_two(k));
  return eps * factor * factor;
}

FXQ_HOST_DEVICE int32_t to_steps(float x, float factor) { return static_cast<int32_t>(round_even(x * factor)); }

// The mean as a whole number and what is left of it; 1 / the standard deviation. In steps.
struct Moments {
  int32_t center;
  float rest;
  float inverse;
};

FXQ_HOST_DEVICE Moments moments_of(int64_t sum, int64_t squares, int64_t count, double eps) {
  const double mean = static_cast<double>(sum) / static_cast<double>(count);
  const double variance = static_cast<double>(squares) / static_cast<double>(count) - mean * mean;
  const double whole = round_even(mean);
  const double deviation = ::sqrt((variance > 0 ? variance : 0) + eps);
  return {static_cast<int32_t>(whole), static_cast<float>(mean - whole), static_cast<float>(1.0 / deviation)};
}

FXQ_HOST_DEVICE float normalized(int32_t step, const Moments& m, float weight, float bias) {
  return (static_cast<float>(step - m.center) - m.rest) * m.inverse * weight + bias;
}

}  // namespace fxquant
