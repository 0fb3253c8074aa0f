#include "moving_average_qparams.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

void run(const float* FXQ_RESTRICT x, int64_t count, int32_t* FXQ_RESTRICT lowest, int32_t* FXQ_RESTRICT highest) {
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

void row(const float* FXQ_RESTRICT x, int64_t count, int32_t* FXQ_RESTRICT low, int32_t* FXQ_RESTRICT high) {
  for (int64_t i = 0; i < count; ++i) {
    const int32_t key = key_of(x[i]);
    low[i] = key < low[i] ? key : low[i];
    high[i] = key > high[i] ? key : high[i];
  }
}

// Seldom needed, so not made quick. step is 0 for one channel, 1 for channels side by side.
int64_t finite(const float* x, int64_t count, int64_t step, int32_t* low, int32_t* high) {
  int64_t nonfinite = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (is_finite(x[i])) {
      row(x + i, 1, low + i * step, high + i * step);
    } else {
      ++nonfinite;
    }
  }
  return nonfinite;
}

void take(const float* x, int64_t count, bool side_by_side, int64_t channel, bool finite_only, ChannelExtremes& e) {
  int32_t* low = e.low + channel;
  int32_t* high = e.high + channel;
  if (finite_only) {
    e.nonfinite += finite(x, count, side_by_side ? 1 : 0, low, high);
  } else if (side_by_side) {
    row(x, count, low, high);
  } else {
    run(x, count, low, high);
  }
}

// Rounding to float keeps the order.
void to_floats(const double* FXQ_RESTRICT x, float* FXQ_RESTRICT y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = static_cast<float>(x[i]);
}

template <Float type>
void to_floats(const Short<type>* x, float* y, int64_t count) {
  widen(x, y, count);
}

template <typename T>
void take(const T* x, int64_t count, bool side_by_side, int64_t channel, bool finite_only, ChannelExtremes& e) {
  float real[kBlock];
  for_each_block(count, [&](int64_t i, int64_t n) {
    to_floats(x + i, real, n);
    take(real, n, side_by_side, side_by_side ? channel + i : channel, finite_only, e);
  });
}

template <typename T>
void walk(const ExtremesArgs& args, ChannelExtremes& e, bool finite_only, int64_t begin, int64_t end) {
  const T* x = static_cast<const T*>(args.x);
  for_each_channel(
      args.layout, begin, end, [&](int64_t i, int64_t n, int64_t c) { take(x + i, n, false, c, finite_only, e); },
      [&](int64_t i, int64_t n, int64_t c) { take(x + i, n, true, c, finite_only, e); });
}

}  // namespace

void extremes_loop(const ExtremesArgs& args, ChannelExtremes& extremes, bool finite_only, int64_t begin, int64_t end) {
  switch (args.type) {
    case Float::kFloat: return walk<float>(args, extremes, finite_only, begin, end);
    case Float::kDouble: return walk<double>(args, extremes, finite_only, begin, end);
    case Float::kHalf: return walk<Half>(args, extremes, finite_only, begin, end);
    case Float::kBFloat16: return walk<BFloat16>(args, extremes, finite_only, begin, end);
  }
}

}  // namespace FXQ_ISA
}  // namespace fxquant
