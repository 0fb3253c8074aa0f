#pragma once
#include "cpu/loops/tile_block.h"
#include "matmul/cpu/loops/matmul.h"

namespace fxquant {

constexpr int64_t kTileStripRows = 64;  // rows of a strip at most

// A product of two activations on tiles; K is not empty. A task is one strip of rows times one N block.
struct TileMatmulArgs : MatmulArgs {
  int64_t padded;    // K of the packed b, as tile_padded_k() gives it
  int64_t k_stride;  // of a
  bool a_signed;
  bool in_place;  // a is read as it is: K innermost, and padded == k_size

  FXQ_INLINE int64_t n_blocks() const { return (panels() + kNBlockPanels - 1) / kNBlockPanels; }
  FXQ_INLINE int64_t first_panel(int64_t block) const { return block * panels() / n_blocks(); }
  FXQ_INLINE int64_t strips() const { return (rows + kTileStripRows - 1) / kTileStripRows; }
  FXQ_INLINE int64_t tile_rows() const { return rows < kTileRows ? rows : kTileRows; }
  // Scratch memory: packed rows, which are signed as b was packed for.
  FXQ_INLINE int64_t scratch() const { return in_place ? 0 : kTileStripRows * padded + kCacheLine; }
};

// K of the packed b, for which tiles of one shape are enough.
FXQ_INLINE int64_t tile_padded_k(int64_t k_size) {
  return KSteps::rounded((k_size + kKGroup - 1) / kKGroup) * kKGroup;
}

}  // namespace fxquant

// Runs the tasks begin <= i < end: n_blocks() for each of the strips() of each matrix of the result.
FXQ_DECLARE_TILE_LOOP(matmul_tiles_loop, (const TileMatmulArgs& args, int64_t begin, int64_t end, uint8_t* scratch))
