// Element types of loops, and 16-bit floats by way of float blocks that stay in the L1 cache. No torch.
#pragma once
#include "common/types.h"
#include "cpu/loops/halves.h"
#include "cpu/loops/loop_pragmas.h"
#include "math/half.h"

#define FXQ_RESTRICT __restrict__
// For a function that is one loop: inlined, its pointers are no longer known to be restricted, and it may not vectorise.
#define FXQ_ONE_LOOP __attribute__((noinline))

namespace fxquant {

constexpr int64_t kBlock = 512;  // elements converted at a time

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
