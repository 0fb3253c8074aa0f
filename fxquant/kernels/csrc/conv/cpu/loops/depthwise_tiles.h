// Tiles of a depthwise convolution: R registers of pixels, whose accumulators stay in registers. No torch.
//
// Recursive templates stand for loops over registers, quarters and taps. So every index is a constant, and no accumulator goes
// through memory. No function is called in a tile: around a call, accumulators would leave the registers.
#pragma once
#include "conv/cpu/loops/depthwise_block.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

template <int R, int k = 0, int r = 0>
FXQ_INLINE void init_tile(SumLanes (*sums)[kQuarters], const int32_t* initial) {
  sums[r][k] = load_sums(initial + k * kQuarterFloats);
  if constexpr (r + 1 < R) {
    init_tile<R, k, r + 1>(sums, initial);
  } else if constexpr (k + 1 < kQuarters) {
    init_tile<R, k + 1>(sums, initial);
  }
}

#if defined(__AVX2__) || defined(__ARM_FEATURE_DOTPROD)
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

template <int R, ClampAt kClampAt, int r = 0>
FXQ_INLINE void store_tile(const Requantize& requantize, const FloatLanes (*values)[kQuarters], uint8_t* y, int64_t step) {
  store_bytes(y, requantize.template bytes<kClampAt>(values[r]));
  if constexpr (r + 1 < R) store_tile<R, kClampAt, r + 1>(requantize, values, y + step, step);
}
// Stores R registers of pixels as floats, all of whose lanes exist. They lie `step` floats apart.
template <int R, int i = 0>
FXQ_INLINE void store_floats(const FloatLanes (*values)[kQuarters], float* y, int64_t step, const int64_t* offsets) {
  constexpr int kPerLane = kQuarters / kLanes, kLane = i % kQuarters;  // registers of a lane
  FloatLanes lanes[kQuarters];
  order_lanes(values[i / kQuarters], lanes);
  store_values(y + offsets[kLane / kPerLane] + kLane % kPerLane * (kRegister / 4), lanes[kLane]);
  if constexpr (i + 1 < R * kQuarters) {
    store_floats<R, i + 1>(values, kLane + 1 == kQuarters ? y + step : y, step, offsets);
  }
}
template <int R, int i = 0>
FXQ_INLINE void store_accumulators_of(const SumLanes (*sums)[kQuarters], uint8_t* to) {
  std::memcpy(to + i * kRegister, &sums[i / kQuarters][i % kQuarters], kRegister);
  if constexpr (i + 1 < R * kQuarters) store_accumulators_of<R, i + 1>(sums, to);
}

// Computes a tile from packed columns. Registers of bytes are stored `step` bytes apart; if not kFinish, accumulators are
// stored, one behind the other.
template <int R, ClampAt kClampAt, bool kFinish>
__attribute__((noinline)) void tile(const Block& b, const uint8_t* packed_columns, const uint8_t* w, uint8_t* y,
                                    int64_t step) {
  SumLanes sums[R][kQuarters];
  init_tile<R>(sums, b.initial);
  const int64_t plane = b.columns->plane;
  const int64_t* tap = b.columns->taps;
  const int64_t* const last = tap + b.taps;
  do {  // There is a tap, and a K group. In loops that may be empty, compilers copy all accumulators.
    const uint8_t* x = packed_columns + *tap;
    int64_t k_group = b.k_groups;
    do {
      add_k_group<R>(sums, x, plane, w);
      w += kKGroupRegisters * kRegister;
      x += kKGroupRegisters * plane;
    } while (--k_group != 0);
  } while (++tap != last);
  if constexpr (kFinish) {
    FloatLanes values[R][kQuarters];
    scale_tile<R>(b.scale, b.bias, sums, values);
    if constexpr (kClampAt == kFloats) {
      store_floats<R>(values, reinterpret_cast<float*>(y), step, b.lane_offsets);
    } else {
      store_tile<R, kClampAt>(Requantize(b.requantize), values, y, step);
    }
  } else {
    store_accumulators_of<R>(sums, y);
  }
}
template <int R, ClampAt kClampAt, bool kFinish>
FXQ_INLINE void tile_of(int64_t steps, const Block& b, const uint8_t* x, const uint8_t* w, uint8_t* y, int64_t step) {
  if constexpr (R > 1) {
    if (steps < R) return tile_of<R - 1, kClampAt, kFinish>(steps, b, x, w, y, step);
  }
  tile<R, kClampAt, kFinish>(b, x, w, y, step);
}
FXQ_INLINE void tile_of_bytes(int64_t steps, const Block& b, const uint8_t* x, const uint8_t* w, uint8_t* y, int64_t step) {
  b.clamp == kClampValues ? tile_of<kSteps, kClampValues, true>(steps, b, x, w, y, step)
                          : tile_of<kSteps, kClampBytes, true>(steps, b, x, w, y, step);
}

// Stores bytes of so many pixels, which lie in b.results, from index `at` of y on.
FXQ_INLINE void store_pixels(const Block& b, const uint8_t* from, int64_t at, int64_t count) {
  const int64_t step = kRegister / b.columns->pixels;
  for (int64_t i = 0; i < count; ++i) copy_bytes(b.a.y + at + i * b.s.channels, from + i * step, b.left);
}

// Whether the bytes of so many pixels lie together, as in a register.
FXQ_INLINE bool is_dense(const Block& b, int64_t count) {
  const int64_t pixels = b.columns->pixels;
  return b.left * pixels == kRegister && (pixels == 1 || (b.s.channels == b.left && count == pixels));
}

FXQ_INLINE ByteLanes load_residual(const Block& b, int64_t at, int64_t count) {
  const uint8_t flip = b.a.residual_signed ? 0x80 : 0;
  if (is_dense(b, count)) return flip_bytes(load_bytes(b.a.residual + at), flip);
  uint8_t lanes[kRegister] = {};
  const int64_t step = kRegister / b.columns->pixels;
  for (int64_t i = 0; i < count; ++i) copy_bytes(lanes + i * step, b.a.residual + at + i * b.s.channels, b.left);
  return flip_bytes(load_bytes(lanes), flip);
}

FXQ_INLINE void store_float(const Block& b, const FloatLanes* values, int64_t at, int64_t count) {
  constexpr int64_t kPerLane = kQuarters / kLanes, kFloats = kRegister / 4;  // registers of a lane, floats of a register
  const int64_t panels = kLanes / b.columns->pixels;
  FloatLanes lanes[kQuarters];
  order_lanes(values, lanes);
  FXQ_UNROLL
  for (int64_t i = 0; i < kLanes; ++i) {
    const int64_t panel = i & (panels - 1), left = b.left - panel * kPanel;
    float* const to = b.a.y_float + at + i / panels * b.s.channels + panel * kPanel;
    if (i / panels >= count) break;
    if (left >= kPanel) {
      for (int64_t n = 0; n < kPerLane; ++n) store_values(to + n * kFloats, lanes[i * kPerLane + n]);
    } else if (left > 0) {
      float some[kPanel];
      for (int64_t n = 0; n < kPerLane; ++n) store_values(some + n * kFloats, lanes[i * kPerLane + n]);
      std::memcpy(to, some, left * sizeof(float));
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
    FloatLanes steps[kQuarters];
    widen(load_residual(b, at, count), b.a.residual_zero_point + (b.a.residual_signed ? 0x80 : 0), steps);
    const FloatLanes scale = all_values(b.a.residual_scale);
    FXQ_UNROLL
    for (int k = 0; k < kQuarters; ++k) values[0][k] = add(values[0][k], multiply(steps[k], scale));
  }
  if (b.a.y_float != nullptr) return store_float(b, values[0], at, count);
  if (is_dense(b, count)) {
    store_bytes(b.a.y + at, b.requantize.template bytes<kClampValues>(values[0]));
    return;
  }
  uint8_t bytes[kRegister];
  store_bytes(bytes, b.requantize.template bytes<kClampValues>(values[0]));
  store_pixels(b, bytes, at, count);
}

// Whether a tile stores floats: there is no residual, and all lanes exist.
FXQ_INLINE bool stores_floats(const Block& b) {
  return b.a.y_float != nullptr && b.a.residual == nullptr && b.left * b.columns->pixels == kRegister;
}

// Computes `count` pixels of one row of the result, of which `pixel` is the first, from packed columns at x.
inline void compute_row(const Block& b, const uint8_t* x, const uint8_t* w, int64_t pixel, int64_t count) {
  const bool has_long_epilogue = b.a.y_float != nullptr || b.a.residual != nullptr, floats = stores_floats(b);
  const int64_t pixels = b.columns->pixels, channels = b.s.channels;
  int64_t steps = (count + pixels - 1) / pixels;
  for (int64_t tiles = (steps + kSteps - 1) / kSteps; tiles > 0; --tiles) {  // of about the same size
    const int64_t some = (steps + tiles - 1) / tiles, some_pixels = some * pixels < count ? some * pixels : count;
    const int64_t at = pixel * channels + b.channel;
    if (floats && some_pixels == some * pixels) {
      uint8_t* const y = reinterpret_cast<uint8_t*>(b.a.y_float + at);
      tile_of<kSteps, kFloats, true>(some, b, x, w, y, pixels * channels);
    } else if (has_long_epilogue) {
      tile_of<kSteps, kClampValues, false>(some, b, x, w, b.results, 0);
      for (int64_t i = 0; i < some; ++i) {
        const int64_t rest = some_pixels - i * pixels;
        finish_pixels(b, b.results + i * kQuarters * kRegister, at + i * pixels * channels, rest < pixels ? rest : pixels);
      }
    } else if (is_dense(b, pixels) && some_pixels == some * pixels) {
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
