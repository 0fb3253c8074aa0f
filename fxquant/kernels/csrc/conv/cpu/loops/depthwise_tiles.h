// Tiles of a depthwise convolution: R registers of pixels, whose accumulators stay in registers. No torch.
//
// Recursive templates stand for loops over registers, quarters and taps. So every index is a constant, and no accumulator goes
// through memory. No function is called in a tile: around a call, accumulators would leave the registers.
#pragma once
#include "conv/cpu/loops/depthwise_block.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

// How a tile ends: with bytes, where no value passes int32 before it is clamped; with bytes of any values; with accumulators.
enum Ending { kBoundedBytes, kBytes, kAccumulators };

template <int R, int k = 0, int r = 0>
FXQ_INLINE void init_tile(SumLanes (*sums)[kQuarters], const int32_t* initial) {
  sums[r][k] = load_sums(initial + k * kQuarterFloats);
  if constexpr (r + 1 < R) {
    init_tile<R, k, r + 1>(sums, initial);
  } else if constexpr (k + 1 < kQuarters) {
    init_tile<R, k + 1>(sums, initial);
  }
}

#if defined(__AVX2__)
// Adds the products of one register of weights for each register of columns.
template <int R, int k, int r = 0>
FXQ_INLINE void add_columns(SumLanes (*sums)[kQuarters], const uint8_t* x, ByteLanes weights) {
  sums[r][k] = add_products(sums[r][k], load_bytes(x + r * kRegister), weights);
  if constexpr (r + 1 < R) add_columns<R, k, r + 1>(sums, x, weights);
}

// Adds the products of one K group.
template <int R, int i = 0>
FXQ_INLINE void add_k_group(SumLanes (*sums)[kQuarters], const uint8_t* x, int64_t plane, const uint8_t* w) {
  add_columns<R, i / kParts>(sums, x, load_bytes(w));
  if constexpr (i + 1 < kKGroupRegisters) add_k_group<R, i + 1>(sums, x + plane, plane, w + kRegister);
}
#else
template <int R>
FXQ_INLINE void add_k_group(SumLanes (*sums)[kQuarters], const uint8_t* x, int64_t plane, const uint8_t* w) {
  for (int r = 0; r < R; ++r) add_products(sums[r], x + r * kRegister, plane, w);
}
#endif

template <int R, int k, int r = 0>
FXQ_INLINE void scale_quarter(FloatLanes scale, FloatLanes bias, const SumLanes (*sums)[kQuarters],
                              FloatLanes (*values)[kQuarters]) {
  values[r][k] = add(multiply(values_of(sums[r][k]), scale), bias);
  if constexpr (r + 1 < R) scale_quarter<R, k, r + 1>(scale, bias, sums, values);
}
// Scales quarter after quarter, so that the scales of one are loaded once for all pixels.
template <int R, int k = 0>
FXQ_INLINE void scale_tile(const float* scale, const float* bias, const SumLanes (*sums)[kQuarters],
                           FloatLanes (*values)[kQuarters]) {
  scale_quarter<R, k>(load_values(scale + k * kQuarterFloats), load_values(bias + k * kQuarterFloats), sums, values);
  if constexpr (k + 1 < kQuarters) scale_tile<R, k + 1>(scale, bias, sums, values);
}

template <int R, bool kBounded, int r = 0>
FXQ_INLINE void store_tile(const Requantize& requantize, const FloatLanes (*values)[kQuarters], uint8_t* y, int64_t step) {
  store_bytes(y, requantize.template bytes<kBounded>(values[r]));
  if constexpr (r + 1 < R) store_tile<R, kBounded, r + 1>(requantize, values, y + step, step);
}
template <int R, int i = 0>
FXQ_INLINE void store_accumulators_of(const SumLanes (*sums)[kQuarters], uint8_t* to) {
  std::memcpy(to + i * kRegister, &sums[i / kQuarters][i % kQuarters], kRegister);
  if constexpr (i + 1 < R * kQuarters) store_accumulators_of<R, i + 1>(sums, to);
}

// Computes a tile from packed columns. Registers of bytes are stored `step` bytes apart, accumulators one behind the other.
template <int R, Ending kEnding>
__attribute__((noinline)) void tile(const Block& b, const uint8_t* lines, const uint8_t* w, uint8_t* y, int64_t step) {
  SumLanes sums[R][kQuarters];
  init_tile<R>(sums, b.initial);
  const int64_t plane = b.columns->plane;
  const int64_t* tap = b.columns->taps;
  const int64_t* const last = tap + b.taps;
  do {  // There is a tap, and a K group. In loops that may be empty, compilers copy all accumulators.
    const uint8_t* x = lines + *tap;
    int64_t k_group = b.k_groups;
    do {
      add_k_group<R>(sums, x, plane, w);
      w += kKGroupRegisters * kRegister;
      x += kKGroupRegisters * plane;
    } while (--k_group != 0);
  } while (++tap != last);
  if constexpr (kEnding == kAccumulators) {
    store_accumulators_of<R>(sums, y);
  } else {
    FloatLanes values[R][kQuarters];
    scale_tile<R>(b.scale, b.bias, sums, values);
    store_tile<R, kEnding == kBoundedBytes>(Requantize(b.requantize), values, y, step);
  }
}
template <int R, Ending kEnding>
FXQ_INLINE void tile_of(int64_t steps, const Block& b, const uint8_t* x, const uint8_t* w, uint8_t* y, int64_t step) {
  if constexpr (R > 1) {
    if (steps < R) return tile_of<R - 1, kEnding>(steps, b, x, w, y, step);
  }
  tile<R, kEnding>(b, x, w, y, step);
}
FXQ_INLINE void tile_of_bytes(int64_t steps, const Block& b, const uint8_t* x, const uint8_t* w, uint8_t* y, int64_t step) {
  b.is_bounded ? tile_of<kSteps, kBoundedBytes>(steps, b, x, w, y, step) : tile_of<kSteps, kBytes>(steps, b, x, w, y, step);
}

// Stores bytes of so many pixels, which lie in b.results, from index `at` of y on.
FXQ_INLINE void store_pixels(const Block& b, const uint8_t* from, int64_t at, int64_t count) {
  const int64_t step = kRegister / b.columns->pixels;
  for (int64_t i = 0; i < count; ++i) copy_bytes(b.a.y + at + i * b.s.channels, from + i * step, b.left);
}

inline ByteLanes load_residual(const Block& b, int64_t at, int64_t count) {
  uint8_t lanes[kRegister] = {};
  const int64_t step = kRegister / b.columns->pixels;
  for (int64_t i = 0; i < count; ++i) copy_bytes(lanes + i * step, b.a.residual + at + i * b.s.channels, b.left);
  return flip_bytes(load_bytes(lanes), b.a.residual_signed ? 0x80 : 0);
}

inline void store_float(const Block& b, const FloatLanes* values, int64_t at, int64_t count) {
  const int64_t panels = kLanes / b.columns->pixels;
  float quarters[kQuarters * kQuarterFloats];
  for (int64_t k = 0; k < kQuarters; ++k) store_values(quarters + k * kQuarterFloats, values[k]);
  for (int64_t i = 0; i < count * panels; ++i) {
    for (int64_t k = 0; k < kQuarters; ++k) {
      const int64_t c = i % panels * kPanel + k * 4, some = b.left - c < 4 ? b.left - c : 4;
      float* const to = b.a.y_float + at + i / panels * b.s.channels + c;
      const float* const from = quarters + k * kQuarterFloats + i * 4;
      if (some == 4) {
        std::memcpy(to, from, 4 * sizeof(float));
      } else {
        for (int64_t n = 0; n < some; ++n) to[n] = from[n];
      }
    }
  }
}

// The epilogue of results that are float values, or get a residual: of one register of accumulators per quarter.
inline void finish_pixels(const Block& b, const uint8_t* accumulators, int64_t at, int64_t count) {
  SumLanes sums[1][kQuarters];
  FloatLanes values[1][kQuarters];
  std::memcpy(sums, accumulators, sizeof(sums));
  scale_tile<1>(b.scale, b.bias, sums, values);
  if (b.a.residual != nullptr) {
    FloatLanes units[kQuarters];
    widen(load_residual(b, at, count), b.a.residual_zero_point + (b.a.residual_signed ? 0x80 : 0), units);
    const FloatLanes scale = all_values(b.a.residual_scale);
    for (int k = 0; k < kQuarters; ++k) values[0][k] = add(values[0][k], multiply(units[k], scale));
  }
  if (b.a.y_float != nullptr) return store_float(b, values[0], at, count);
  uint8_t bytes[kRegister];
  store_bytes(bytes, b.requantize.template bytes<false>(values[0]));
  store_pixels(b, bytes, at, count);
}

// Computes `count` pixels of one row of the result, of which `pixel` is the first, from packed columns.
inline void compute_row(const Block& b, const uint8_t* w, int64_t pixel, int64_t count) {
  const bool has_long_epilogue = b.a.y_float != nullptr || b.a.residual != nullptr;
  const int64_t pixels = b.columns->pixels, channels = b.s.channels;
  const bool is_dense = b.left * pixels == kRegister && (pixels == 1 || channels == b.left);
  const uint8_t* x = b.lines;
  int64_t steps = (count + pixels - 1) / pixels;
  for (int64_t tiles = (steps + kSteps - 1) / kSteps; tiles > 0; --tiles) {  // of about the same size
    const int64_t some = (steps + tiles - 1) / tiles, some_pixels = some * pixels < count ? some * pixels : count;
    const int64_t at = pixel * channels + b.channel;
    if (has_long_epilogue) {
      tile_of<kSteps, kAccumulators>(some, b, x, w, b.results, 0);
      for (int64_t i = 0; i < some; ++i) {
        const int64_t rest = some_pixels - i * pixels;
        finish_pixels(b, b.results + i * kQuarters * kRegister, at + i * pixels * channels, rest < pixels ? rest : pixels);
      }
    } else if (is_dense && some_pixels == some * pixels) {
      tile_of_bytes(some, b, x, w, b.a.y + at, pixels * channels);
    } else {
      tile_of_bytes(some, b, x, w, b.results, kRegister);
      store_pixels(b, b.results, at, some_pixels);
    }
    steps -= some;
    x += some * kRegister;
    pixel += some_pixels;
    count -= some_pixels;
  }
}

}  // namespace
}  // namespace FXQ_ISA
}  // namespace fxquant
