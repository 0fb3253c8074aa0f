#pragma once
#include "common/types.h"
#include "cpu/isa.h"
#include "math/histogram.h"

namespace fxquant {

constexpr int64_t kReplicas = 8;  // equal values in a row would wait for each other's counter, so that takes turns

// Counts of one task in one row, before they are added to those of others.
struct BinCounts {
  const void* x;
  Float type;
  int64_t bins;
  uint16_t* replicas;    // [bins][kReplicas], all 0 at first and at the end
  uint32_t* counts;  // [bins], all 0 at first: what the replicas held before they were emptied
  uint32_t* scratch;   // [bins], any
  int64_t pending;   // how much may be in the replicas, 0 at first
  BinWindow window;
  float low;          // inf and -inf before the first finite value
  float high;
  int64_t nonfinite;  // infinite values and NaN, which no bin holds
};

constexpr int64_t kMostCounted = int64_t{1} << 30;  // elements of one call, so that a counter does not overflow

}  // namespace fxquant

// Counts the elements begin <= i < end.
FXQ_DECLARE_LOOP(histogram_loop, (BinCounts& counts, int64_t begin, int64_t end))
