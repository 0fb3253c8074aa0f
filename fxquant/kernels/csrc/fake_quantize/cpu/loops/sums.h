// Sums in float64, in an order that is the same for every instruction set. No torch.
#pragma once
#include <cstdint>

#include "cpu/loops/blocks.h"

namespace fxquant {

constexpr int64_t kSumLanes = 16;  // a sum runs in so many lanes
static_assert(kBlock % kSumLanes == 0, "blocks are whole rounds of the lanes");

// Fills a block [count] up to a whole round of lanes; returns how many rounds that are. There is room for one round more.
template <typename Real>
static inline int64_t fill_last_round(Real* values, int64_t count) {
  for (int64_t lane = 0; lane < kSumLanes; ++lane) values[count + lane] = Real{0};
  return (count + kSumLanes - 1) / kSumLanes;
}

// values: [rounds, stride], of which the first columns are summed.
template <typename Real>
static inline void add_to_lanes(const Real* FXQ_RESTRICT values, int64_t rounds, int64_t stride,
                                double* FXQ_RESTRICT lanes) {
  for (int64_t i = 0; i < rounds; ++i) {
    for (int64_t lane = 0; lane < kSumLanes; ++lane) lanes[lane] += static_cast<double>(values[i * stride + lane]);
  }
}

// The same for two kinds of values. An addition waits for the one before of its lane: two kinds take as long as one.
template <typename Real>
FXQ_ONE_LOOP static void add_both_to_lanes(const Real* FXQ_RESTRICT a, const Real* FXQ_RESTRICT b, int64_t rounds,
                                    int64_t stride, double* FXQ_RESTRICT a_lanes, double* FXQ_RESTRICT b_lanes) {
  for (int64_t i = 0; i < rounds; ++i) {
    for (int64_t lane = 0; lane < kSumLanes; ++lane) {
      a_lanes[lane] += static_cast<double>(a[i * stride + lane]);
      b_lanes[lane] += static_cast<double>(b[i * stride + lane]);
    }
  }
}

// Halves onto each other: one after the other they would wait for 15 additions, which is felt where stretches are short.
static inline double horizontal_sum(const double* lanes) {
  double sums[kSumLanes];
  for (int64_t lane = 0; lane < kSumLanes; ++lane) sums[lane] = lanes[lane];
  for (int64_t half = kSumLanes / 2; half > 0; half /= 2) {
    for (int64_t lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  }
  return sums[0];
}

}  // namespace fxquant
