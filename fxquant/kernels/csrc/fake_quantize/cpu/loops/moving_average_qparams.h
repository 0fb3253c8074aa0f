#pragma once
#include "cpu/isa.h"
#include "cpu/loops/channels.h"
#include "math/histogram.h"

namespace fxquant {

struct ExtremesArgs {
  Float type;
  const void* x;
  Layout layout;
};

// Keys of the smallest and the largest value of each channel: [channels] each, no value at first.
struct ChannelExtremes {
  int32_t* low;
  int32_t* high;
  int64_t nonfinite;
};

constexpr int32_t kNoLow = INT32_MAX;
constexpr int32_t kNoHigh = INT32_MIN;

}  // namespace fxquant

// Takes the elements begin <= i < end into account: infinities and NaN too, or, with finite_only, counts them apart.
FXQ_DECLARE_LOOP(extremes_loop, (const ExtremesArgs& args, ChannelExtremes& extremes, bool finite_only, int64_t begin,
                                 int64_t end))
