// Windows of three columns in one K group (3x3, or 1 to 4 rows), where a CPU multiplies and adds four bytes exactly. No torch.
//
// Nine products and an epilogue take about equally long, so the next pixel's products should fill the gaps of the epilogue
// before: both follow each other for one pixel or two, in one loop.
//
//   slide_rows()     Panels fill a register. Columns are interleaved in registers, and each serves three pixels of one row of
//                    the result, or of two rows.
//   compute_three()  A register holds several pixels. Columns were packed; the weights of a row stay in registers.
#pragma once
#include "conv/cpu/loops/depthwise_columns.h"
#include "conv/cpu/loops/depthwise_tiles.h"

#if defined(__AVX512VNNI__)
namespace fxquant {
namespace FXQ_ISA {
namespace {

constexpr int64_t kTapBytes = kQuarters * kRegister;  // weights of a tap, or a packed column

FXQ_INLINE bool is_three_taps(const Block& b) { return b.taps == 3 && b.k_groups == 1; }
FXQ_INLINE bool can_slide(const Block& b) {
  const bool is_plain = b.a.y_float == nullptr && b.a.residual == nullptr;
  const bool is_long = stores_floats(b) || (b.a.y_float == nullptr && b.left == kRegister);
  return is_three_taps(b) && b.columns->pixels == 1 && b.s.stride_width <= 2 && b.s.dilation_width == 1 &&
         (is_plain || is_long);
}
FXQ_INLINE bool has_three_taps(const Block& b) {
  return is_three_taps(b) && b.a.residual == nullptr && (b.a.y_float == nullptr || stores_floats(b));
}

template <int i = 0>
FXQ_INLINE void load_three_taps(ByteLanes (*weights)[kQuarters], const uint8_t* w) {
  weights[i / kQuarters][i % kQuarters] = load_bytes(w + i * kRegister);
  if constexpr (i + 1 < 3 * kQuarters) load_three_taps<i + 1>(weights, w);
}
template <int k = 0>
FXQ_INLINE void load_quarters(ByteLanes* quarters, const uint8_t* from) {
  quarters[k] = load_bytes(from + k * kRegister);
  if constexpr (k + 1 < kQuarters) load_quarters<k + 1>(quarters, from);
}
template <int k = 0>
FXQ_INLINE void copy_quarters(ByteLanes* to, const ByteLanes* from) {
  to[k] = from[k];
  if constexpr (k + 1 < kQuarters) copy_quarters<k + 1>(to, from);
}
// Weights in registers, or in memory.
template <int k = 0>
FXQ_INLINE void add_tap(SumLanes* sums, const ByteLanes* x, const ByteLanes* w) {
  sums[k] = add_products(sums[k], x[k], w[k]);
  if constexpr (k + 1 < kQuarters) add_tap<k + 1>(sums, x, w);
}
template <int k = 0>
FXQ_INLINE void add_tap(SumLanes* sums, const ByteLanes* x, const uint8_t* w) {
  sums[k] = add_products(sums[k], x[k], load_bytes(w + k * kRegister));
  if constexpr (k + 1 < kQuarters) add_tap<k + 1>(sums, x, w);
}
template <int R, int k = 0>
FXQ_INLINE void add_packed_tap(SumLanes (*sums)[kQuarters], const uint8_t* x, int64_t plane, const ByteLanes* weights) {
  add_columns<R, k>(sums, x, weights[k]);
  if constexpr (k + 1 < kQuarters) add_packed_tap<R, k + 1>(sums, x + plane, plane, weights);
}

template <int k = 0>
FXQ_INLINE void load_initial(SumLanes* initial, const int32_t* from) {
  initial[k] = load_sums(from + k * kQuarterFloats);
  if constexpr (k + 1 < kQuarters) load_initial<k + 1>(initial, from);
}
template <int R, int i = 0>
FXQ_INLINE void copy_initial(SumLanes (*sums)[kQuarters], const SumLanes* initial) {
  sums[i / kQuarters][i % kQuarters] = initial[i % kQuarters];
  if constexpr (i + 1 < R * kQuarters) copy_initial<R, i + 1>(sums, initial);
}

// The columns of some rows of x, from left to right.
struct SlidingColumns {
  const uint8_t* from[kKGroup];
  int64_t step[kKGroup];
  int64_t begin, end;       // columns that are loaded from x
  int64_t width;            // of x
  const uint8_t* near_end;  // columns from `end` to `width`, packed
  const uint8_t* padding;   // a column of padding, packed
};

template <bool kSigned, int k = 0>
FXQ_INLINE void load_rows(SlidingColumns& c, ByteLanes* rows) {
  rows[k] = flip_bytes(load_bytes(c.from[k]), kSigned ? 0x80 : 0);
  c.from[k] += c.step[k];
  if constexpr (k + 1 < kKGroup) load_rows<kSigned, k + 1>(c, rows);
}
template <bool kSigned>
FXQ_INLINE void next_column(SlidingColumns& c, int64_t w, ByteLanes* quarters) {
  if (w >= c.begin && w < c.end) {
    ByteLanes rows[kKGroup];
    load_rows<kSigned>(c, rows);
    interleave_rows(rows, quarters);
  } else {
    load_quarters(quarters, w < c.begin || w >= c.width ? c.padding : c.near_end + (w - c.end) * kTapBytes);
  }
}

// Where a row of bytes or floats is stored, and the row of the result below it.
struct RowTarget {
  uint8_t* y;
  int64_t step;      // elements from pixel to pixel
  int64_t row_step;  // and to the row below
  const uint8_t* residual;
};

template <int R, int r = 0>
FXQ_INLINE void add_residual(FloatLanes (*values)[kQuarters], const uint8_t* residual, int64_t step, uint8_t flip,
                             int32_t zero_point, FloatLanes scale) {
  FloatLanes steps[kQuarters];
  widen(flip_bytes(load_bytes(residual), flip), zero_point, steps);
  FXQ_UNROLL
  for (int k = 0; k < kQuarters; ++k) values[r][k] = add(values[r][k], multiply(steps[k], scale));
  if constexpr (r + 1 < R) add_residual<R, r + 1>(values, residual + step, step, flip, zero_point, scale);
}

// Computes `count` pixels of kRows rows of the result. w is the first column that they read.
template <int kStride, int kRows, ClampAt kClampAt, bool kSigned>
__attribute__((noinline)) void slide(const Block& b, const SlidingColumns& columns, int64_t w, int64_t count,
                                     const uint8_t* first, const uint8_t* second, const RowTarget& target) {
  SlidingColumns c = columns;
  ByteLanes weights[3][kQuarters];  // With a stride, there is less else to keep in registers.
  if constexpr (kStride == 2) load_three_taps(weights, first);
  const Requantize requantize(b.requantize);
  const float *const scale = b.scale, *const bias = b.bias;
  SumLanes initial[kQuarters];
  load_initial(initial, b.initial);
  uint8_t* y = target.y;
  const int64_t step = target.step * (kClampAt == kFloats ? 4 : 1);
  const uint8_t* residual = target.residual;
  const uint8_t residual_flip = b.a.residual_signed ? 0x80 : 0;
  const int32_t residual_zero_point = b.a.residual_zero_point + residual_flip;
  const FloatLanes residual_scale = all_values(b.a.residual_scale);
  ByteLanes left[kQuarters], middle[kQuarters], right[kQuarters];
  next_column<kSigned>(c, w++, left);
  if constexpr (kStride == 1) next_column<kSigned>(c, w++, middle);
  for (int64_t i = 0; i < count; ++i, y += step) {
    if constexpr (kStride == 2) next_column<kSigned>(c, w++, middle);
    next_column<kSigned>(c, w++, right);
    SumLanes sums[kRows][kQuarters];
    copy_initial<kRows>(sums, initial);
    if constexpr (kStride == 2) {
      add_tap(sums[0], left, weights[0]);
      add_tap(sums[0], middle, weights[1]);
      add_tap(sums[0], right, weights[2]);
    } else {
      add_tap(sums[0], left, first);
      add_tap(sums[0], middle, first + kTapBytes);
      add_tap(sums[0], right, first + 2 * kTapBytes);
    }
    if constexpr (kRows == 2) {
      add_tap(sums[1], left, second);
      add_tap(sums[1], middle, second + kTapBytes);
      add_tap(sums[1], right, second + 2 * kTapBytes);
    }
    FloatLanes values[kRows][kQuarters];
    scale_tile<kRows>(scale, bias, sums, values);
    if constexpr (kClampAt == kAddResidual) {
      add_residual<kRows>(values, residual, target.row_step, residual_flip, residual_zero_point, residual_scale);
      residual += step;
    }
    if constexpr (kClampAt == kFloats) {
      store_floats<kRows>(values, reinterpret_cast<float*>(y), target.row_step, b.lane_offsets);
    } else {
      store_tile<kRows, kClampAt>(requantize, values, y, target.row_step);
    }
    if constexpr (kStride == 1) {
      copy_quarters(left, middle);
      copy_quarters(middle, right);
    } else {
      copy_quarters(left, right);
    }
  }
}

template <int kStride, int kRows, bool kSigned>
FXQ_INLINE void slide_any(const Block& b, const SlidingColumns& columns, int64_t w, int64_t count, const uint8_t* first,
                          const uint8_t* second, const RowTarget& target) {
  const auto run = b.a.y_float != nullptr    ? slide<kStride, kRows, kFloats, kSigned>
                   : b.a.residual != nullptr ? slide<kStride, kRows, kAddResidual, kSigned>
                   : b.clamp == kSaturate    ? slide<kStride, kRows, kSaturate, kSigned>
                   : b.clamp == kClampBytes  ? slide<kStride, kRows, kClampBytes, kSigned>
                                             : slide<kStride, kRows, kClampValues, kSigned>;
  run(b, columns, w, count, first, second, target);
}

template <bool kSigned>
SlidingColumns sliding_columns(const Block& b, int64_t w, int64_t count) {
  const ConvShape& s = b.s;
  const uint8_t* const last = last_row(b.rows);
  const int64_t inside = s.width < w + count ? s.width : w + count;
  SlidingColumns c;
  c.width = s.width;
  c.begin = w < 0 ? 0 : w;
  c.end = inside < c.begin ? c.begin : inside;
  if (last != nullptr && b.left < kRegister) {
    const int64_t room = b.end_of_x - kRegister - last, most = room < 0 ? 0 : room / b.a.x_step + 1;
    c.end = most < c.begin ? c.begin : most < c.end ? most : c.end;
  }
  for (int64_t k = 0; k < kKGroup; ++k) {
    const bool exists = b.rows[k] != nullptr;
    c.from[k] = exists ? b.rows[k] + c.begin * b.a.x_step : b.padding;
    c.step[k] = exists ? b.a.x_step : 0;
  }
  c.near_end = b.packed_columns;
  c.padding = b.padding_column;
  for (int64_t i = c.end; i < inside; ++i) {
    pack_edge<kLanes, kSigned>(b, b.rows, i, b.packed_columns + (i - c.end) * kTapBytes, kRegister);
  }
  return c;
}

template <int kStride, bool kSigned>
void slide_rows_of(const Block& b, int64_t output, int64_t count, int64_t pixel, int64_t rows) {
  const int64_t w = output * kStride - b.s.left, channels = b.s.channels, y_row_step = b.s.out_width * channels;
  const SlidingColumns columns = sliding_columns<kSigned>(b, w, (count - 1) * kStride + 3);
  const bool is_dense = b.left == kRegister;
  for (int64_t i = 0; i < rows;) {
    const int64_t together = kStride == 1 && i + 1 < rows ? 2 : 1, at = pixel * channels + i * y_row_step + b.channel;
    RowTarget target{b.results, kRegister, count * kRegister, nullptr};
    if (is_dense) {
      uint8_t* const y = b.a.y_float != nullptr ? reinterpret_cast<uint8_t*>(b.a.y_float + at) : b.a.y + at;
      target = {y, channels, y_row_step, b.a.residual != nullptr ? b.a.residual + at : nullptr};
    }
    if (together == 2) {
      slide_any<1, 2, kSigned>(b, columns, w, count, b.weights_of(i), b.weights_of(i + 1), target);
    } else {
      slide_any<kStride, 1, kSigned>(b, columns, w, count, b.weights_of(i), nullptr, target);
    }
    if (!is_dense) {
      for (int64_t r = 0; r < together; ++r) store_pixels(b, b.results + r * target.row_step, at + r * y_row_step, count);
    }
    i += together;
  }
}

// Computes `count` pixels of `rows` rows of the result, which share a packing. `pixel` is the first one.
template <bool kSigned>
void slide_rows(const Block& b, int64_t output, int64_t count, int64_t pixel, int64_t rows) {
  b.s.stride_width == 1 ? slide_rows_of<1, kSigned>(b, output, count, pixel, rows)
                        : slide_rows_of<2, kSigned>(b, output, count, pixel, rows);
}

// Computes a tile of R registers of pixels.
template <int R, ClampAt kClampAt>
FXQ_INLINE void three_taps_of(const Block& b, const Requantize& requantize, const uint8_t* const* x, int64_t at,
                              int64_t plane, const ByteLanes (*weights)[kQuarters], uint8_t* y, int64_t step) {
  SumLanes sums[R][kQuarters];
  init_tile<R>(sums, b.initial);
  add_packed_tap<R>(sums, x[0] + at, plane, weights[0]);
  add_packed_tap<R>(sums, x[1] + at, plane, weights[1]);
  add_packed_tap<R>(sums, x[2] + at, plane, weights[2]);
  FloatLanes values[R][kQuarters];
  scale_tile<R>(b.scale, b.bias, sums, values);
  if constexpr (kClampAt == kFloats) {
    store_floats<R>(values, reinterpret_cast<float*>(y), step, b.lane_offsets);
  } else {
    store_tile<R, kClampAt>(requantize, values, y, step);
  }
}
template <ClampAt kClampAt>
__attribute__((noinline)) void three_taps(const Block& b, int64_t steps, const uint8_t* packed_columns, const uint8_t* w,
                                          uint8_t* y, int64_t step) {
  ByteLanes weights[3][kQuarters];
  load_three_taps(weights, w);
  const Requantize requantize(b.requantize);
  const int64_t plane = b.columns->plane;
  const int64_t* const taps = b.columns->taps;
  const uint8_t* const x[3] = {packed_columns + taps[0], packed_columns + taps[1], packed_columns + taps[2]};
  int64_t i = 0;
  for (; i + 2 <= steps; i += 2, y += 2 * step * (kClampAt == kFloats ? 4 : 1)) {
    three_taps_of<2, kClampAt>(b, requantize, x, i * kRegister, plane, weights, y, step);
  }
  if (i < steps) three_taps_of<1, kClampAt>(b, requantize, x, i * kRegister, plane, weights, y, step);
}

// Computes `count` pixels of one row of the result, of which `pixel` is the first, from packed columns.
inline void compute_three(const Block& b, const uint8_t* w, int64_t pixel, int64_t count) {
  constexpr int64_t kMost = DepthwiseArgs::kResultBytes / kRegister;  // registers
  const int64_t pixels = b.columns->pixels, channels = b.s.channels, steps = (count + pixels - 1) / pixels;
  const auto run = [&](int64_t some, const uint8_t* x, uint8_t* y, int64_t step) {
    const auto tiles = b.clamp == kSaturate     ? three_taps<kSaturate>
                       : b.clamp == kClampBytes ? three_taps<kClampBytes>
                                                : three_taps<kClampValues>;
    tiles(b, some, x, w, y, step);
  };
  const int64_t at = pixel * channels + b.channel;
  if (stores_floats(b)) {
    const int64_t whole = count / pixels, done = whole * pixels;
    if (whole > 0) {
      three_taps<kFloats>(b, whole, b.packed_columns, w, reinterpret_cast<uint8_t*>(b.a.y_float + at), pixels * channels);
    }
    return compute_row(b, b.packed_columns + whole * kRegister, w, pixel + done, count - done);
  }
  int64_t i = is_dense(b, pixels) ? count / pixels : 0;
  if (i > 0) run(i, b.packed_columns, b.a.y + at, pixels * channels);
  while (i < steps) {
    const int64_t some = steps - i < kMost ? steps - i : kMost, rest = count - i * pixels;
    run(some, b.packed_columns + i * kRegister, b.results, kRegister);
    store_pixels(b, b.results, at + i * pixels * channels, rest < some * pixels ? rest : some * pixels);
    i += some;
  }
}

}  // namespace
}  // namespace FXQ_ISA
}  // namespace fxquant
#endif
