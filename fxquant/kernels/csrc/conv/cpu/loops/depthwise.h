#pragma once
#include "conv/cpu/loops/conv_args.h"
#include "cpu/dot_products.h"

namespace fxquant {

// A depthwise convolution, and how it is divided into tasks. A task is some rows of one plane of the result times one block
// of at most kNBlockPanels panels (64 channels).
struct DepthwiseArgs : ConvArgs {
  static constexpr int64_t kRegisterBytes = 64;  // of the widest instruction set
  static constexpr int64_t kParts = 2;           // registers for four bytes of a channel, at most
  static constexpr int64_t kQuarters = 4;        // registers for four rows of bytes

  static constexpr int64_t kResultBytes = 16 << 10;

  explicit DepthwiseArgs(const ConvArgs& args) : ConvArgs(args) {}

  // Neighbouring rows of the result whose windows lie in the same K groups of input rows are computed together.
  FXQ_INLINE int64_t shared_rows() const {
    constexpr int64_t kMostWeights = 12 << 10;  // bytes in the L1 cache: each of these rows has a copy of the weights
    const int64_t kernel = shape.kernel_height;
    if (shape.kernel_planes != 1 || shape.dilation_height != 1) return 1;
    const int64_t fit = (shape.k_groups() * kKGroup - kernel) / shape.stride_height + 1;
    const int64_t most = kMostWeights / (shape.panel_bytes() * kNBlockPanels);
    const int64_t rows = fit < most ? fit : most;
    return rows < 1 ? 1 : rows < shape.out_height ? rows : shape.out_height;
  }
  FXQ_INLINE int64_t task_rows() const {
    constexpr int64_t kPixels = 256;
    const int64_t rows = (kPixels + shape.out_width - 1) / shape.out_width, shared = shared_rows();
    return (rows + shared - 1) / shared * shared;
  }
  FXQ_INLINE int64_t row_tasks() const { return (shape.out_height + task_rows() - 1) / task_rows(); }
  FXQ_INLINE int64_t blocks() const { return (shape.panels() + kNBlockPanels - 1) / kNBlockPanels; }
  FXQ_INLINE int64_t tasks() const { return shape.all_planes() * row_tasks() * blocks(); }
  // The order of tasks in a plane: all rows of a block, then the next block, if the plane stays in the L2 cache.
  FXQ_INLINE bool keeps_blocks() const {
    constexpr int64_t kNear = 512 << 10;
    return (shape.height * shape.width + shape.out_height * shape.out_width) * shape.channels <= kNear;
  }
  // So many successive tasks take a few microseconds, which is worth a thread.
  FXQ_INLINE int64_t grain() const {
    constexpr int64_t kWork = 1 << 19;  // products
    constexpr int64_t kEpilogue = 24;   // products that take as long as the epilogue of one output
    const int64_t outputs = shape.out_pixels() * shape.panels() * kPanel;
    const int64_t products = shape.k_blocks() * shape.k_groups() * kKGroup;
    const int64_t work = outputs * (products + kEpilogue) / tasks();
    return work < kWork ? kWork / (work + 1) : 1;
  }

  // Bytes of scratch memory of a thread, which holds, one behind the other and aligned to a register:
  // packed columns; packed weights for each of the shared rows; padding and constants of a block; rows of the window.
  FXQ_INLINE int64_t column_bytes() const {
    constexpr int64_t kMost = 16 << 10;
    const int64_t least = shape.k_groups() * kQuarters * kParts * shape.kernel_width * 2 * kRegisterBytes;
    return least > kMost ? least : kMost;
  }
  FXQ_INLINE int64_t weight_bytes() const {
    return shared_rows() * shape.k_blocks() * shape.k_groups() * kQuarters * kParts * kRegisterBytes;
  }
  FXQ_INLINE int64_t scratch() const {
    const int64_t rows = shape.k_groups() * kKGroup * static_cast<int64_t>(sizeof(const uint8_t*));
    const int64_t taps = 3 * (shape.kernel_width * static_cast<int64_t>(sizeof(int64_t)) + kRegisterBytes);
    return column_bytes() + weight_bytes() + kBlockConstants * kRegisterBytes + kResultBytes + rows + taps;
  }
  static constexpr int64_t kBlockConstants = 64;  // registers
};

}  // namespace fxquant

// Runs the tasks begin <= i < end.
FXQ_DECLARE_LOOP_WITH_DOT_PRODUCTS(depthwise_loop, (const DepthwiseArgs& args, int64_t begin, int64_t end, uint8_t* scratch))
