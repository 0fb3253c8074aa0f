// The smallest and the largest value of stretches of memory, as keys: math/histogram.h.
#pragma once
#include "cpu/loops/blocks.h"
#include "fake_quantize/cpu/loops/moving_average_qparams.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

inline void extremes_of(const float* FXQ_RESTRICT x, int64_t count, int32_t* FXQ_RESTRICT lowest,
                        int32_t* FXQ_RESTRICT highest) {
  int32_t low = *lowest;
  int32_t high = *highest;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t key = key_of(x[i]);
    low = key < low ? key : low;
    high = key > high ? key : high;
  }
  *lowest = low;
  *highest = high;
}

// 16-bit floats are in order as 16-bit integers too, and so need no conversion but that of the extremes.
template <Float type>
FXQ_ONE_LOOP void extremes_of(const Short<type>* FXQ_RESTRICT x, int64_t count, int16_t* FXQ_RESTRICT lowest,
                              int16_t* FXQ_RESTRICT highest) {
  int16_t low = INT16_MAX;
  int16_t high = INT16_MIN;
  for (int64_t i = 0; i < count; ++i) {
    const int16_t key = short_key_of(x[i].bits);
    low = key < low ? key : low;
    high = key > high ? key : high;
  }
  *lowest = low;
  *highest = high;
}

template <Float type>
inline void extremes_of(const Short<type>* x, int64_t count, int32_t* lowest, int32_t* highest) {
  int16_t ends[2];
  extremes_of(x, count, &ends[0], &ends[1]);
  for (const int16_t key : ends) {
    const float value = to_float(Short<type>{of_short_key(key)});
    extremes_of(&value, 1, lowest, highest);
  }
}

inline void extremes_of_each(const float* FXQ_RESTRICT x, int64_t count, int32_t* FXQ_RESTRICT low,
                             int32_t* FXQ_RESTRICT high) {
  for (int64_t i = 0; i < count; ++i) {
    const int32_t key = key_of(x[i]);
    low[i] = key < low[i] ? key : low[i];
    high[i] = key > high[i] ? key : high[i];
  }
}

// Seldom needed, so not made quick. step is 0 for one channel, 1 for channels side by side.
inline int64_t finite_extremes(const float* x, int64_t count, int64_t step, int32_t* low, int32_t* high) {
  int64_t nonfinite = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (is_finite(x[i])) {
      extremes_of_each(x + i, 1, low + i * step, high + i * step);
    } else {
      ++nonfinite;
    }
  }
  return nonfinite;
}

inline void take_extremes(const float* x, int64_t count, bool side_by_side, int64_t channel, bool finite_only,
                          ChannelExtremes& e) {
  int32_t* low = e.low + channel;
  int32_t* high = e.high + channel;
  if (finite_only) {
    e.nonfinite += finite_extremes(x, count, side_by_side ? 1 : 0, low, high);
  } else if (side_by_side) {
    extremes_of_each(x, count, low, high);
  } else {
    extremes_of(x, count, low, high);
  }
}

// Rounding to float keeps the order.
inline void to_floats(const double* FXQ_RESTRICT x, float* FXQ_RESTRICT y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = static_cast<float>(x[i]);
}

template <Float type>
inline void to_floats(const Short<type>* x, float* y, int64_t count) {
  widen(x, y, count);
}

template <typename T>
inline void take_blocks(const T* x, int64_t count, bool side_by_side, int64_t channel, bool finite_only,
                        ChannelExtremes& e) {
  float real[kBlock];
  for_each_block(count, [&](int64_t i, int64_t n) {
    to_floats(x + i, real, n);
    take_extremes(real, n, side_by_side, side_by_side ? channel + i : channel, finite_only, e);
  });
}

template <Float type>
inline void take_extremes(const Short<type>* x, int64_t count, bool side_by_side, int64_t channel, bool finite_only,
                          ChannelExtremes& e) {
  if (side_by_side || finite_only) return take_blocks(x, count, side_by_side, channel, finite_only, e);
  extremes_of(x, count, e.low + channel, e.high + channel);
}

inline void take_extremes(const double* x, int64_t count, bool side_by_side, int64_t channel, bool finite_only,
                          ChannelExtremes& e) {
  take_blocks(x, count, side_by_side, channel, finite_only, e);
}

}  // namespace
}  // namespace FXQ_ISA
}  // namespace fxquant
