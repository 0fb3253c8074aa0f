// What all tiles of products share: R rows of sums for V times 16 channels each. Templates that call themselves stand for
// loops, so that every index is a constant from the start, and the sums never lie in memory. No torch.
#pragma once
#include "conv/conv_shape.h"
#include "cpu/isa.h"
#include "cpu/loops/products.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

// Rows of a tile of some vectors, so that they keep their sums in registers.
constexpr int rows_of_tile(int64_t vectors) {
  return static_cast<int>(kRows * kVectors / vectors < 2 * kRows ? kRows * kVectors / vectors : 2 * kRows);
}

template <int V, int v = 0>
FXQ_INLINE void start_row(Sums* sums, const Sums* starts) {
  sums[v] = starts[v];
  if constexpr (v + 1 < V) start_row<V, v + 1>(sums, starts);
}

template <int R, int V, int r = 0>
FXQ_INLINE void start_rows(Sums (*sums)[V], const Sums* starts) {
  start_row<V>(sums[r], starts);
  if constexpr (r + 1 < R) start_rows<R, V, r + 1>(sums, starts);
}

// The values of channels that sums start at, of which `left` are there.
template <int V, int v = 0>
FXQ_INLINE void load_starts(Sums* starts, const int32_t* from, int64_t left) {
  starts[v] = started(from + v * kPanel, left - v * kPanel);
  if constexpr (v + 1 < V) load_starts<V, v + 1>(starts, from, left);
}

// Of V panels that lie `panel` bytes apart; moved by one byte of their quads, if kMoved.
template <int V, bool kMoved = false, int v = 0>
FXQ_INLINE void load_panels(Weights* weights, const int8_t* w, int64_t panel) {
  weights[v] = kMoved ? load_moved_weights(w + v * panel) : load_weights(w + v * panel);
  if constexpr (v + 1 < V) load_panels<V, kMoved, v + 1>(weights, w, panel);
}

template <int V, int v = 0>
FXQ_INLINE void add_pixel(Sums* sums, const Pixel& x, const Weights* weights) {
  add_products(sums[v], x, weights[v]);
  if constexpr (v + 1 < V) add_pixel<V, v + 1>(sums, x, weights);
}

template <int R, int V, bool kSigned, int r = 0>
FXQ_INLINE void add_pixels(Sums (*sums)[V], const uint8_t* const* x, int64_t at, const Weights* weights) {
  add_pixel<V>(sums[r], load_pixel<kSigned>(x[r] + at), weights);
  if constexpr (r + 1 < R) add_pixels<R, V, kSigned, r + 1>(sums, x, at, weights);
}

// The same of less than four bytes.
template <int R, int V, bool kSigned, int r = 0>
FXQ_INLINE void add_rests(Sums (*sums)[V], const uint8_t* const* x, int64_t at, int64_t rest, const Weights* weights) {
  add_pixel<V>(sums[r], load_some<kSigned>(x[r] + at, rest), weights);
  if constexpr (r + 1 < R) add_rests<R, V, kSigned, r + 1>(sums, x, at, rest, weights);
}

template <int V, int v = 0>
FXQ_INLINE void add_line(Sums* sums, const uint8_t* x, const Weights* weights) {
  add_products(sums[v], load_line(x + v * kPanel * kQuad), weights[v]);
  if constexpr (v + 1 < V) add_line<V, v + 1>(sums, x, weights);
}

// Lines of each row, `step` bytes apart.
template <int R, int V, int r = 0>
FXQ_INLINE void add_lines(Sums (*sums)[V], const uint8_t* x, int64_t step, const Weights* weights) {
  add_line<V>(sums[r], x, weights);
  if constexpr (r + 1 < R) add_lines<R, V, r + 1>(sums, x + step, step, weights);
}

}  // namespace
}  // namespace FXQ_ISA
}  // namespace fxquant
