// Sums in float64, in an order that is the same for every instruction set. No torch.
#pragma once
#include <cstdint>

#include "blocks.h"

namespace fxquant {

constexpr int64_t kSumLanes = 16;  // a sum runs in so many lanes
static_assert(kBlock % kSumLanes == 0, "blocks are whole rounds of the lanes");

// values: [count, stride], of which the first columns are summed.
template <typename Real>
static inline void add_to_lanes(const Real* FXQ_RESTRICT values, int64_t count, int64_t stride,
                                double* FXQ_RESTRICT lanes) {
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t lane = 0; lane < kSumLanes; ++lane) lanes[lane] += static_cast<double>(values[i * stride + lane]);
  }
}

// The same for a block [count], which is filled up with zeros to a whole round of lanes.
template <typename Real>
static inline void add_block_to_lanes(Real* values, int64_t count, double* lanes) {
  int64_t rounded = count;
  for (; rounded % kSumLanes != 0; ++rounded) values[rounded] = Real{0};
  add_to_lanes(values, rounded / kSumLanes, kSumLanes, lanes);
}

// Halves onto each other: one after the other they would wait for 15 additions, which is felt where stretches are short.
static inline double total(const double* lanes) {
  double sums[kSumLanes];
  for (int64_t lane = 0; lane < kSumLanes; ++lane) sums[lane] = lanes[lane];
  for (int64_t half = kSumLanes / 2; half > 0; half /= 2) {
    for (int64_t lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  }
  return sums[0];
}

}  // namespace fxquant
