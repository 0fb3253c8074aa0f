#pragma once
#include "conv/cpu/loops/conv2d.h"
#include "cpu/loops/brgemm_sizes.h"

namespace fxquant {

// A convolution whose products the framework's kernels compute (see cpu/brgemm.h). A task is one strip times one group
// bundle times one N block. The strip's LHS is packed once for all N blocks of a group bundle.
struct BrgemmConvArgs : Conv2dArgs {
  int64_t strip_rows;  // pixels of a strip at most

  void row_window() const = delete;  // How it is divided holds for the whole result alone.

  // Chooses the strips: of about the same size, such that the thread with most of them has least to do.
  BrgemmConvArgs(const ConvArgs& args, int64_t threads) : Conv2dArgs(args), strip_rows(0) {
    constexpr int64_t kNear = 512 << 10;  // bytes that stay in the L2 cache
    constexpr int64_t kWeights = 16;      // rows that take as long as to read the weights of an N block
    constexpr int64_t kTries = 16;
    int64_t most = 4 * kBrgemmRows;
    while (most > kBrgemmRows && most * k_size() > kNear) most /= 2;
    const int64_t fewest = (shape.out_pixels() + most - 1) / most;
    int64_t least = 0;
    for (int64_t count = fewest; count < fewest + kTries; ++count) {
      const int64_t rows =
          ((shape.out_pixels() + count - 1) / count + kBrgemmRowMultiple - 1) / kBrgemmRowMultiple * kBrgemmRowMultiple;
      const int64_t tasks = (shape.out_pixels() + rows - 1) / rows * shape.group_bundles() * shape.n_blocks();
      const int64_t time = (tasks + threads - 1) / threads * (rows + kWeights);
      if (strip_rows == 0 || time < least) {
        strip_rows = rows;
        least = time;
      }
    }
  }

  FXQ_INLINE int64_t strips() const { return (shape.out_pixels() + strip_rows - 1) / strip_rows; }
  FXQ_INLINE int64_t tasks() const { return strips() * shape.group_bundles() * shape.n_blocks(); }
  FXQ_INLINE int64_t k_size() const { return shape.k_blocks() * shape.k_groups() * kKGroup; }  // K, with padding
  FXQ_INLINE int64_t grain() const {
    constexpr int64_t kWork = 1 << 19;  // as conv2d.h says; tiles multiply a few times as fast
    constexpr int64_t kEpilogue = 48;
    const int64_t work =
        shape.out_pixels() * shape.group_bundles() * shape.panels() * kPanel * (k_size() / 4 + kEpilogue) / tasks();
    return work < kWork ? kWork / (work + 1) : 1;
  }
  // Scratch memory for the pointers of a strip of Conv2dArgs, and for the packed LHS.
  FXQ_INLINE int64_t scratch() const { return Conv2dArgs::scratch() + lhs_buffer_bytes(strip_rows, k_size()); }
};

}  // namespace fxquant

// Runs the tasks begin <= i < end of a convolution that is not depthwise.
FXQ_DECLARE_LOOP_WITH_VNNI(conv_brgemm_loop, (const BrgemmConvArgs& args, int64_t begin, int64_t end, uint8_t* scratch))
