#pragma once
#include "conv/cpu/loops/conv_args.h"
#include "cpu/dot_products.h"

namespace fxquant {

constexpr int64_t kStripPixels = 24;  // of a strip, at most

// A convolution that is not depthwise, over one to three dimensions, or a linear layer; and how it is divided into tasks: a
// task is one strip (at most kStripPixels successive
// pixels of the result) times one N block (at most 64 channels).
struct Conv2dArgs : ConvArgs {
  explicit Conv2dArgs(const ConvArgs& args) : ConvArgs(args) {}

  FXQ_INLINE int64_t tasks() const { return strips() * all_n_blocks(); }
  // So many successive tasks take a few microseconds, which is worth a thread.
  FXQ_INLINE int64_t grain() const {
    constexpr int64_t kWork = 1 << 19;  // products
    constexpr int64_t kEpilogue = 48;   // products that take as long as the epilogue of one output
    const int64_t outputs = shape.out_pixels() * shape.group_bundles() * shape.panels() * kPanel;
    const int64_t products = shape.k_blocks() * shape.k_groups() * kKGroup;
    const int64_t work = outputs * (products + kEpilogue) / tasks();
    return work < kWork ? kWork / (work + 1) : 1;
  }

  FXQ_INLINE int64_t strips() const {
    return (shape.out_pixels() + kStripPixels - 1) / kStripPixels;
  }
  FXQ_INLINE int64_t all_n_blocks() const { return shape.group_bundles() * shape.n_blocks(); }
  // The strips of an M block: tasks take an M block with one N block, then with the next N block, then the next M block.
  FXQ_INLINE int64_t strips_per_m_block() const {
    constexpr int64_t kNear = 256 << 10;  // bytes that stay in the L2 cache
    const int64_t weight = shape.group_bundles() * shape.panels() * shape.panel_bytes();
    // With few pixels the weight is the larger memory: a thread takes all pixels of few channels, and reads its weights
    // once. With many pixels it takes all channels of few pixels.
    if (weight > shape.out_pixels() * (shape.in_channels + shape.channels)) return strips();
    return weight <= kNear ? 1 : 4;
  }

  // Bytes of scratch memory of a thread: pointers to the K blocks of a strip's pixels, and copies of input.
  FXQ_INLINE int64_t scratch() const { return pointer_bytes() + copied_bytes(); }
  FXQ_INLINE int64_t pointer_bytes() const {  // [K blocks][kStripPixels]
    return shape.k_blocks() * kStripPixels * static_cast<int64_t>(sizeof(const uint8_t*));
  }
  FXQ_INLINE int64_t copied_bytes() const {  // with few channels: rows of taps, and as much as is read beyond each
    return shape.has_few_channels() ? kStripPixels * shape.kernel_rows() * (shape.kernel_width * shape.in_channels + kKGroup)
                                    : 0;
  }
};

}  // namespace fxquant

// Runs the tasks begin <= i < end.
FXQ_DECLARE_LOOP_WITH_DOT_PRODUCTS(conv_loop, (const Conv2dArgs& args, int64_t begin, int64_t end, uint8_t* scratch))
