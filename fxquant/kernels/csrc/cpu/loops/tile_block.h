// A block of a product on tiles: one or two tiles of rows times one or two panels of channels. No torch.
//
// LHS: rows of bytes, `row_stride` apart; K block i of a row begins offsets[i] bytes behind it. Nothing is packed: rows may
// overlap, as the windows of neighbouring pixels do.
// RHS: an N block of a packed weight (conv/conv_shape.h). Its panels lie side by side for each K group, so a tile of
// it is K groups of one panel, whose distance is the width of the N block.
//
//   accumulators = 0                      # tiles 0 to 3
//   for K block:
//       for 16 K groups of it, or fewer:  # KSteps
//           load a tile of each panel, and of each 16 rows
//           accumulators += LHS * RHS     # up to four products for four loads
//   store the accumulators to memory
//
// The K groups of a K block are divided evenly among as few tiles as hold them. Where they do not divide, the last
// tile has fewer. It is of another shape, which takes three registers more: then a block has one panel.
#pragma once
#include "common/layout.h"
#include "cpu/loops/tiles.h"

namespace fxquant {

constexpr int64_t kBlockTiles = 2;                           // tiles of rows of a block at most
constexpr int64_t kTileBlockRows = kBlockTiles * kTileRows;  // rows of a block at most
constexpr int64_t kTileGroups = 16;                          // K groups of a tile at most

// How the K groups of a K block are divided: `count` tiles of `groups` K groups, then one of `tail`, unless that is 0.
struct KSteps {
  int64_t count;
  int64_t groups;
  int64_t tail;

  FXQ_INLINE static KSteps of(int64_t k_groups) {
    const int64_t tiles = (k_groups + kTileGroups - 1) / kTileGroups;
    if (k_groups % tiles == 0) return {tiles, k_groups / tiles, 0};
    return {k_groups / kTileGroups, kTileGroups, k_groups % kTileGroups};
  }
  // As many K groups or a few more, which divide evenly.
  FXQ_INLINE static int64_t rounded(int64_t k_groups) {
    const int64_t tiles = (k_groups + kTileGroups - 1) / kTileGroups;
    return tiles == 0 ? 0 : (k_groups + tiles - 1) / tiles * tiles;
  }
  FXQ_INLINE int64_t panels() const { return tail == 0 ? 2 : 1; }  // of a block at most
};

namespace FXQ_ISA {
namespace {

// Tile registers that are configured for blocks of so many rows. `rows` is at most kTileRows.
class TileBlock {
 public:
  TileBlock(const KSteps& steps, int64_t rows, const int64_t* offsets, int64_t k_blocks, int64_t row_stride)
      : steps_(steps),
        offsets_(offsets),
        k_blocks_(k_blocks),
        row_stride_(row_stride),
        tiles_({{rows, kTileBytes},
                {rows, kTileBytes},
                {rows, bytes_of(steps.tail == 0 ? kTileGroups : steps.tail)},
                {rows, bytes_of(steps.tail == 0 ? kTileGroups : steps.tail)},
                {rows, bytes_of(steps.groups)},
                {rows, bytes_of(steps.groups)},
                {steps.groups, kTileBytes},
                {steps.tail == 0 ? steps.groups : steps.tail, kTileBytes}}) {}

  // Gives the registers back, after the last block.
  void release() const { tiles_.release(); }

  // Computes the accumulators [tiles][kTileRows][panels][16] of the rows from `first` on, and from `second` on unless that
  // is null, times `panels` panels of an N block that has `width` of them.
  template <bool kSigned>
  FXQ_INLINE void multiply(const uint8_t* first, const uint8_t* second, const int8_t* weight, int64_t width,
                           int64_t panels, int32_t* acc) {
    if (steps_.tail != 0) {
      second != nullptr ? with_tails<kSigned, 2>(first, second, weight, width, acc)
                        : with_tails<kSigned, 1>(first, first, weight, width, acc);
    } else if (panels == 2) {
      second != nullptr ? evenly<kSigned, 2, 2>(first, second, weight, width, acc)
                        : evenly<kSigned, 1, 2>(first, first, weight, width, acc);
    } else {
      second != nullptr ? evenly<kSigned, 2, 1>(first, second, weight, width, acc)
                        : evenly<kSigned, 1, 1>(first, first, weight, width, acc);
    }
  }

 private:
  const KSteps steps_;
  const int64_t* const offsets_;
  const int64_t k_blocks_;
  const int64_t row_stride_;
  Tiles tiles_;

  static constexpr int64_t bytes_of(int64_t k_groups) { return k_groups * kKGroup; }

  template <bool kSigned, int M, int N>
  void evenly(const uint8_t* first, const uint8_t* second, const int8_t* w, int64_t width, int32_t* acc) {
    const int64_t row_stride = row_stride_, k_stride = width * kPanelGroupBytes, k_blocks = k_blocks_;
    const int64_t count = steps_.count, step = steps_.groups * kKGroup, w_step = steps_.groups * k_stride;
    tiles_.zero<0>();
    if constexpr (N == 2) tiles_.zero<1>();
    if constexpr (M == 2) tiles_.zero<2>();
    if constexpr (M == 2 && N == 2) tiles_.zero<3>();
    for (int64_t i = 0; i < k_blocks; ++i) {
      int64_t at = offsets_[i];
      for (int64_t k = 0; k < count; ++k, at += step, w += w_step) {
        tiles_.load<6>(w, k_stride);
        tiles_.load<4>(first + at, row_stride);
        tiles_.add_products<kSigned, 0, 4, 6>();
        if constexpr (N == 2) {
          tiles_.load<7>(w + kPanelGroupBytes, k_stride);
          tiles_.add_products<kSigned, 1, 4, 7>();
        }
        if constexpr (M == 2) {
          tiles_.load<5>(second + at, row_stride);
          tiles_.add_products<kSigned, 2, 5, 6>();
          if constexpr (N == 2) tiles_.add_products<kSigned, 3, 5, 7>();
        }
      }
    }
    constexpr int64_t kRow = N * kPanel;  // int32 of a row
    constexpr int64_t kRowBytes = kRow * static_cast<int64_t>(sizeof(int32_t));
    tiles_.store<0>(acc, kRowBytes);
    if constexpr (N == 2) tiles_.store<1>(acc + kPanel, kRowBytes);
    if constexpr (M == 2) tiles_.store<2>(acc + kTileRows * kRow, kRowBytes);
    if constexpr (M == 2 && N == 2) tiles_.store<3>(acc + kTileRows * kRow + kPanel, kRowBytes);
  }

  template <bool kSigned, int M>
  void with_tails(const uint8_t* first, const uint8_t* second, const int8_t* w, int64_t width, int32_t* acc) {
    const int64_t row_stride = row_stride_, k_stride = width * kPanelGroupBytes, k_blocks = k_blocks_;
    const int64_t count = steps_.count, w_tail = steps_.tail * k_stride;
    tiles_.zero<0>();
    if constexpr (M == 2) tiles_.zero<1>();
    for (int64_t i = 0; i < k_blocks; ++i) {
      int64_t at = offsets_[i];
      for (int64_t k = 0; k < count; ++k, at += kTileBytes, w += kTileGroups * k_stride) {
        tiles_.load<6>(w, k_stride);
        tiles_.load<4>(first + at, row_stride);
        tiles_.add_products<kSigned, 0, 4, 6>();
        if constexpr (M == 2) {
          tiles_.load<5>(second + at, row_stride);
          tiles_.add_products<kSigned, 1, 5, 6>();
        }
      }
      tiles_.load<7>(w, k_stride);
      tiles_.load<2>(first + at, row_stride);
      tiles_.add_products<kSigned, 0, 2, 7>();
      if constexpr (M == 2) {
        tiles_.load<3>(second + at, row_stride);
        tiles_.add_products<kSigned, 1, 3, 7>();
      }
      w += w_tail;
    }
    constexpr int64_t kRowBytes = kPanel * static_cast<int64_t>(sizeof(int32_t));
    tiles_.store<0>(acc, kRowBytes);
    if constexpr (M == 2) tiles_.store<1>(acc + kTileRows * kPanel, kRowBytes);
  }
};

}  // namespace
}  // namespace FXQ_ISA
}  // namespace fxquant
