// Windows of five or seven columns in two K groups (5x5, 7x7), where a CPU multiplies and adds four bytes exactly. No torch.
//
// These have many products for each result, and loading operands is what takes longest. So a tile computes one quarter of its
// channels after the other: then accumulators of eight pixels and the weights of a row of taps fit the registers, and each
// column is loaded once for all taps that read it.
//
//   for 64 channels, 8 pixels:
//       for quarter of the channels:
//           accumulators of 8 pixels = zero point correction
//           for K group, run of taps that read successive columns:
//               load the weights of the run
//               for column: load it, multiply by each weight, add to the pixel that reads it with that tap
//           scale, bias, round
//       pack the quarters to bytes, store
#pragma once
#include "conv/cpu/loops/depthwise_tiles.h"

#if defined(__AVX512VNNI__)
namespace fxquant {
namespace FXQ_ISA {
namespace {

constexpr int64_t kQuarterTilePixels = 8;

FXQ_INLINE bool fits_quarter_tiles(const Block& b) {
  return (b.taps == 5 || b.taps == 7) && b.k_groups == 2 && b.columns->pixels == 1 &&
         b.columns->is_shared && b.s.stride_width <= 2 && b.s.dilation_width == 1 && b.clamp != kClampValues &&
         b.a.y_float == nullptr && b.a.residual == nullptr;
}

// Two runs of taps that read successive columns: of stride 2, even and odd taps; of many taps, the first and the last ones.
struct TapRuns {
  const uint8_t* x[2];
  const uint8_t* w[2];
  int64_t w_step;  // bytes from tap to tap
};

template <int R, int T, int c, int t = 0>
FXQ_INLINE void add_column(SumLanes* sums, ByteLanes x, const ByteLanes* w) {
  if constexpr (c >= t && c - t < R) sums[c - t] = add_products(sums[c - t], x, w[t]);
  if constexpr (t + 1 < T) add_column<R, T, c, t + 1>(sums, x, w);
}
template <int R, int T, int c = 0>
FXQ_INLINE void add_run(SumLanes* sums, const uint8_t* x, const ByteLanes* w) {
  add_column<R, T, c>(sums, load_bytes(x + c * kRegister), w);
  if constexpr (c + 1 < R + T - 1) add_run<R, T, c + 1>(sums, x, w);
}
template <int T, int t = 0>
FXQ_INLINE void load_run(ByteLanes* weights, const uint8_t* w, int64_t step) {
  weights[t] = load_bytes(w);
  if constexpr (t + 1 < T) load_run<T, t + 1>(weights, w + step, step);
}
template <int R, int T0, int T1, int k, int k_group = 0>
FXQ_INLINE void add_quarter(SumLanes* sums, const TapRuns& runs, int64_t plane) {
  constexpr int64_t kPlane = k_group * kQuarters + k;
  ByteLanes weights[T0];
  load_run<T0>(weights, runs.w[0] + kPlane * kRegister, runs.w_step);
  add_run<R, T0>(sums, runs.x[0] + kPlane * plane, weights);
  if constexpr (T1 > 0) {
    load_run<T1>(weights, runs.w[1] + kPlane * kRegister, runs.w_step);
    add_run<R, T1>(sums, runs.x[1] + kPlane * plane, weights);
  }
  if constexpr (k_group == 0) add_quarter<R, T0, T1, k, 1>(sums, runs, plane);
}

template <int R, int r = 0>
FXQ_INLINE void fill(SumLanes* sums, SumLanes with) {
  sums[r] = with;
  if constexpr (r + 1 < R) fill<R, r + 1>(sums, with);
}
template <int R, int r = 0>
FXQ_INLINE void finish_quarter(const Requantize& requantize, FloatLanes scale, FloatLanes bias, SumLanes* sums) {
  sums[r] = requantize.template steps<kClampBytes>(add(multiply(values_of(sums[r]), scale), bias));
  if constexpr (r + 1 < R) finish_quarter<R, r + 1>(requantize, scale, bias, sums);
}
template <int R, int r = 0>
FXQ_INLINE void pack_quarters(const Requantize& requantize, const SumLanes* first, const SumLanes* second, ByteLanes* to) {
  to[r] = requantize.pack_steps(first[r], second[r]);
  if constexpr (r + 1 < R) pack_quarters<R, r + 1>(requantize, first, second, to);
}
template <int R, int r = 0>
FXQ_INLINE void store_halves(const Requantize& requantize, const ByteLanes* low, const ByteLanes* high, uint8_t* y,
                             int64_t step) {
  store_bytes(y, requantize.template pack_pairs<kClampBytes>(low[r], high[r]));
  if constexpr (r + 1 < R) store_halves<R, r + 1>(requantize, low, high, y + step, step);
}

// Computes quarter k of a tile: int32, rounded to steps of y.
template <int R, int T0, int T1, int k>
FXQ_INLINE void compute_quarter(const Block& b, const Requantize& requantize, const TapRuns& runs, int64_t plane,
                                SumLanes* sums) {
  fill<R>(sums, load_sums(b.initial + k * kQuarterFloats));
  add_quarter<R, T0, T1, k>(sums, runs, plane);
  finish_quarter<R>(requantize, load_values(b.scale + k * kQuarterFloats), load_values(b.bias + k * kQuarterFloats), sums);
}
template <int R, int T0, int T1>
__attribute__((noinline)) void quarter_tile(const Block& b, const TapRuns& given, uint8_t* y, int64_t step) {
  const TapRuns runs = given;
  const Requantize requantize(b.requantize);
  const int64_t plane = b.columns->plane;
  SumLanes first[R], second[R];
  ByteLanes low[R], high[R];
  compute_quarter<R, T0, T1, 0>(b, requantize, runs, plane, first);
  compute_quarter<R, T0, T1, 1>(b, requantize, runs, plane, second);
  pack_quarters<R>(requantize, first, second, low);
  compute_quarter<R, T0, T1, 2>(b, requantize, runs, plane, first);
  compute_quarter<R, T0, T1, 3>(b, requantize, runs, plane, second);
  pack_quarters<R>(requantize, first, second, high);
  store_halves<R>(requantize, low, high, y, step);
}
template <int R, int T0, int T1>
FXQ_INLINE void quarter_tile_of(int64_t pixels, const Block& b, const TapRuns& runs, uint8_t* y, int64_t step) {
  if constexpr (R > 1) {
    if (pixels < R) return quarter_tile_of<R - 1, T0, T1>(pixels, b, runs, y, step);
  }
  quarter_tile<R, T0, T1>(b, runs, y, step);
}

template <int T0, int T1>
void compute_by_quarters_of(const Block& b, const uint8_t* w, int64_t pixel, int64_t count) {
  const int64_t stride = b.s.stride_width, tap = 2 * kQuarters * kRegister;
  const int64_t second = T1 == 0 ? 0 : stride == 1 ? T0 : 1;  // the first tap of the second run
  const int64_t* const taps = b.columns->taps;
  TapRuns runs{{b.packed_columns + taps[0], b.packed_columns + taps[second]}, {w, w + second * tap}, stride * tap};
  const bool is_dense = b.left == kRegister;
  for (int64_t tiles = (count + kQuarterTilePixels - 1) / kQuarterTilePixels; tiles > 0; --tiles) {
    const int64_t some = (count + tiles - 1) / tiles, at = pixel * b.s.channels + b.channel;
    uint8_t* const y = is_dense ? b.a.y + at : b.results;
    quarter_tile_of<kQuarterTilePixels, T0, T1>(some, b, runs, y, is_dense ? b.s.channels : kRegister);
    if (!is_dense) store_pixels(b, b.results, at, some);
    runs.x[0] += some * kRegister;
    runs.x[1] += some * kRegister;
    pixel += some;
    count -= some;
  }
}

// Computes `count` pixels of one row of the result, of which `pixel` is the first, from packed columns.
inline void compute_by_quarters(const Block& b, const uint8_t* w, int64_t pixel, int64_t count) {
  if (b.taps == 7) return compute_by_quarters_of<4, 3>(b, w, pixel, count);
  b.s.stride_width == 1 ? compute_by_quarters_of<5, 0>(b, w, pixel, count)
                        : compute_by_quarters_of<3, 2>(b, w, pixel, count);
}

}  // namespace
}  // namespace FXQ_ISA
}  // namespace fxquant
#endif
