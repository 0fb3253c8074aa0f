// The micro kernel: a tile of R rows (pixels) times V panels, whose accumulators stay in registers. No torch.
//
// Recursive templates stand for loops over rows and panels. So every index is a constant, and no accumulator goes through
// memory.
#pragma once
#include "conv/conv_shape.h"
#include "cpu/isa.h"
#include "cpu/loops/products.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

// Returns how many rows a tile of so many panels has, so that its accumulators fit the registers.
constexpr int rows_of_tile(int64_t panels) {
  return static_cast<int>(kRows * kMostPanels / panels < 2 * kRows ? kRows * kMostPanels / panels : 2 * kRows);
}

template <int V, int v = 0>
FXQ_INLINE void init_row(Accumulators* acc, const Accumulators* initial) {
  acc[v] = initial[v];
  if constexpr (v + 1 < V) init_row<V, v + 1>(acc, initial);
}

template <int R, int V, int r = 0>
FXQ_INLINE void init_rows(Accumulators (*acc)[V], const Accumulators* initial) {
  init_row<V>(acc[r], initial);
  if constexpr (r + 1 < R) init_rows<R, V, r + 1>(acc, initial);
}

// Loads the initial accumulators of V panels, of whose channels `channels_left` exist.
template <int V, int v = 0>
FXQ_INLINE void load_initial(Accumulators* initial, const int32_t* from, int64_t channels_left) {
  initial[v] = init_accumulators(from + v * kPanel, channels_left - v * kPanel);
  if constexpr (v + 1 < V) load_initial<V, v + 1>(initial, from, channels_left);
}

// Loads the weights of V panels, `panel` bytes apart, for one K group.
template <int V, int v = 0>
FXQ_INLINE void load_panels(Weights* weights, const int8_t* w, int64_t panel) {
  weights[v] = load_weights(w + v * panel);
  if constexpr (v + 1 < V) load_panels<V, v + 1>(weights, w, panel);
}

template <int V, int v = 0>
FXQ_INLINE void add_pixel(Accumulators* acc, const Pixel& x, const Weights* weights) {
  add_products(acc[v], x, weights[v]);
  if constexpr (v + 1 < V) add_pixel<V, v + 1>(acc, x, weights);
}

template <int R, int V, bool kSigned, int r = 0>
FXQ_INLINE void add_pixels(Accumulators (*acc)[V], const uint8_t* const* x, int64_t at, const Weights* weights) {
  add_pixel<V>(acc[r], load_pixel<kSigned>(x[r] + at), weights);
  if constexpr (r + 1 < R) add_pixels<R, V, kSigned, r + 1>(acc, x, at, weights);
}

// Does the same for the last K group of a K block, of which `rest` bytes exist.
template <int R, int V, bool kSigned, int r = 0>
FXQ_INLINE void add_pixel_tails(Accumulators (*acc)[V], const uint8_t* const* x, int64_t at, int64_t rest,
                                const Weights* weights) {
  add_pixel<V>(acc[r], load_pixel_tail<kSigned>(x[r] + at, rest), weights);
  if constexpr (r + 1 < R) add_pixel_tails<R, V, kSigned, r + 1>(acc, x, at, rest, weights);
}

}  // namespace
}  // namespace FXQ_ISA
}  // namespace fxquant
