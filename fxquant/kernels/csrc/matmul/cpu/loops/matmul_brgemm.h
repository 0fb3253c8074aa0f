#pragma once
#include "cpu/loops/brgemm_sizes.h"
#include "matmul/cpu/loops/matmul.h"

namespace fxquant {

// A product that the framework's kernels compute. A task is one strip of rows times one N block.
struct BrgemmMatmulArgs : MatmulArgs {
  int64_t padded;    // K of the packed b: a multiple of 64, so that there are few sizes whatever K is
  int64_t k_stride;  // of a
  uint8_t flip;      // of a

  FXQ_INLINE int64_t n_blocks() const { return (panels() + kNBlockPanels - 1) / kNBlockPanels; }
  FXQ_INLINE int64_t first_panel(int64_t block) const { return block * panels() / n_blocks(); }
  FXQ_INLINE int64_t strips() const { return (rows + kBrgemmRows - 1) / kBrgemmRows; }
};

}  // namespace fxquant

// Runs the tasks begin <= i < end: n_blocks() for each of the strips() of each matrix of the result.
FXQ_DECLARE_LOOP_WITH_VNNI(matmul_brgemm_loop, (const BrgemmMatmulArgs& args, int64_t begin, int64_t end, uint8_t* scratch))
