// Element types of loops, and 16-bit floats by way of float blocks that stay in the first cache. No torch.
#pragma once
#include "../../math/half.h"
#include "types.h"

#define FXQ_RESTRICT __restrict__

namespace fxquant {

constexpr int64_t kBlock = 512;  // elements converted at a time

// A 16-bit float as it lies in memory.
template <Float type>
struct Short {
  uint16_t bits;
};
using Half = Short<Float::kHalf>;
using BFloat16 = Short<Float::kBFloat16>;

static inline float to_float(Half x) { return float_from_half(x.bits); }
static inline float to_float(BFloat16 x) { return float_from_bfloat16(x.bits); }
static inline void from_float(float x, Half& y) { y.bits = half_from_float(x); }
static inline void from_float(float x, BFloat16& y) { y.bits = bfloat16_from_float(x); }

template <Float type>
static inline void widen(const Short<type>* FXQ_RESTRICT x, float* FXQ_RESTRICT y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = to_float(x[i]);
}

template <Float type>
static inline void narrow(const float* FXQ_RESTRICT x, Short<type>* FXQ_RESTRICT y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) from_float(x[i], y[i]);
}

// Calls f(offset, count) for blocks of at most kBlock elements.
template <typename F>
static inline void for_each_block(int64_t count, F f) {
  for (int64_t i = 0; i < count; i += kBlock) f(i, count - i < kBlock ? count - i : kBlock);
}

}  // namespace fxquant
