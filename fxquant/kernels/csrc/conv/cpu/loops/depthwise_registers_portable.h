// The registers of depthwise_registers.h where a CPU has neither AVX2 nor the dot products of ARM: one lane, as arrays. No torch.
#pragma once
#if !defined(__AVX2__) && !defined(__ARM_FEATURE_DOTPROD)
#include <cstdint>
#include <cstring>

#include "conv/conv_shape.h"
#include "conv/cpu/loops/depthwise_sizes.h"
#include "cpu/loops/loop_pragmas.h"
#include "math/modulo.h"
#include "math/requantize.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

constexpr int kLanes = 1;
constexpr int kSteps = 1;
struct ByteLanes {
  uint8_t of[16];
};
struct SumLanes {
  int32_t of[4];
};
struct FloatLanes {
  float of[4];
};

FXQ_INLINE ByteLanes load_bytes(const void* from) {
  ByteLanes x;
  std::memcpy(&x, from, sizeof(x));
  return x;
}
FXQ_INLINE void store_bytes(void* to, const ByteLanes& x) { std::memcpy(to, &x, sizeof(x)); }
FXQ_INLINE FloatLanes load_values(const float* from) {
  FloatLanes x;
  std::memcpy(&x, from, sizeof(x));
  return x;
}
FXQ_INLINE void store_values(float* to, const FloatLanes& x) { std::memcpy(to, &x, sizeof(x)); }

FXQ_INLINE ByteLanes gather_lanes(const uint8_t* const* from, int64_t at) { return load_bytes(from[0] + at); }
template <int kTogether>
FXQ_INLINE ByteLanes load_lanes(const uint8_t* from, int64_t) {
  return load_bytes(from);
}

FXQ_INLINE ByteLanes flip_bytes(ByteLanes x, uint8_t flip) {
  for (uint8_t& byte : x.of) byte ^= flip;
  return x;
}
FXQ_INLINE void interleave_rows(const ByteLanes* rows, ByteLanes* quarters) {
  uint8_t x[4][16], bytes[64];
  std::memcpy(x, rows, sizeof(x));
  for (int c = 0; c < 16; ++c) {
    bytes[4 * c] = x[0][c];
    bytes[4 * c + 1] = x[1][c];
    bytes[4 * c + 2] = x[2][c];
    bytes[4 * c + 3] = x[3][c];
  }
  std::memcpy(quarters, bytes, sizeof(bytes));
}
FXQ_INLINE ByteLanes shift_k_groups(const ByteLanes& x, const ByteLanes& before, int count) {
  ByteLanes shifted;
  for (int i = 0; i < 16; ++i) shifted.of[i] = i % 4 >= count ? x.of[i - count] : before.of[i + 4 - count];
  return shifted;
}

constexpr int kParts = 1;
FXQ_INLINE void store_quarter(uint8_t* to, int64_t, const ByteLanes& x) { store_bytes(to, x); }
FXQ_INLINE void store_weights(uint8_t* to, const ByteLanes& w) { store_bytes(to, w); }
// Adds the products of all quarters of a K group at once: compilers vectorize a loop over 16 channels, and none over four.
FXQ_INLINE void add_products(SumLanes* to, const uint8_t* x, int64_t plane, const uint8_t* w) {
  uint8_t bytes[64];
  int8_t weights[64];
  int32_t sums[16];
  for (int k = 0; k < kQuarters; ++k) std::memcpy(bytes + 16 * k, x + k * plane, 16);
  std::memcpy(weights, w, sizeof(weights));
  std::memcpy(sums, to, sizeof(sums));
  for (int c = 0; c < 16; ++c) {
    const uint8_t* const four = bytes + 4 * c;
    const int8_t* const by = weights + 4 * c;
    sums[c] = add_modulo(sums[c], four[0] * by[0] + four[1] * by[1] + four[2] * by[2] + four[3] * by[3]);
  }
  std::memcpy(to, sums, sizeof(sums));
}

FXQ_INLINE FloatLanes values_of(const SumLanes& x) {
  FloatLanes values;
  for (int c = 0; c < 4; ++c) values.of[c] = static_cast<float>(x.of[c]);
  return values;
}
FXQ_INLINE FloatLanes multiply(FloatLanes a, const FloatLanes& b) {
  for (int c = 0; c < 4; ++c) a.of[c] *= b.of[c];
  return a;
}
FXQ_INLINE FloatLanes add(FloatLanes a, const FloatLanes& b) {
  for (int c = 0; c < 4; ++c) a.of[c] += b.of[c];
  return a;
}
FXQ_INLINE FloatLanes all_values(float x) { return {{x, x, x, x}}; }

FXQ_INLINE void widen(const ByteLanes& x, int32_t zero_point, FloatLanes* values) {
  for (int c = 0; c < 16; ++c) values[c / 4].of[c % 4] = static_cast<float>(x.of[c] - zero_point);
}

FXQ_INLINE void order_lanes(const FloatLanes* quarters, FloatLanes* lanes) {
  std::memcpy(lanes, quarters, kQuarters * sizeof(*lanes));
}

class Requantize {
 public:
  explicit Requantize(const OutputQParams& q) : q_(q) {}

  template <ClampAt>
  FXQ_INLINE ByteLanes bytes(const FloatLanes* values) const {
    float all[16];
    std::memcpy(all, values, sizeof(all));
    ByteLanes bytes;
    FXQ_INDEPENDENT
    for (int c = 0; c < 16; ++c) bytes.of[c] = requantize(all[c], q_);
    return bytes;
  }

 private:
  const OutputQParams q_;
};

}  // namespace
}  // namespace FXQ_ISA
}  // namespace fxquant
#endif
