// Geometry of a convolution and of its packed weight. No torch: for loops and CUDA alike.
//
// The input (LHS) is stored as [batch, planes, height, width, in_channels]; an image is a volume of one plane. The weight (RHS)
// is packed by pack_weight of kernels/conv/packing.py, once for a module:
//
//   [group bundles][N blocks][K blocks][K groups][panels of the N block][kPanel channels][kKGroup bytes]
//
//   K group       kKGroup bytes of a K block, which one instruction multiplies with as many weights and adds to one
//                 32-bit lane.
//   panel         kPanel output channels: the lanes of a 512-bit register.
//   N block       At most kNBlockPanels panels. Their weights for one K group lie side by side.
//   K block       The part of a window that one pointer to the input leads to, and its weights: one tap (kernel element);
//                 a row of taps, if an ungrouped convolution has few input channels. Of a depthwise convolution it is a
//                 column of taps, whose rows are interleaved before they are multiplied.
//   group bundle  Groups of a grouped convolution that are multiplied together: as many as have at most kPanel output
//                 channels, if that number divides the number of groups. Weights between different groups are zero.
#pragma once
#include <cstdint>

#include "cpu/loops/loop_pragmas.h"

namespace fxquant {

constexpr int64_t kPanel = 16;
constexpr int64_t kNBlockPanels = 4;
constexpr int64_t kKGroup = 4;
constexpr int64_t kPanelGroupBytes = kPanel * kKGroup;  // weights of a panel for one K group
constexpr int64_t kMaxTaps = 1 << 16;                   // elements of a window
constexpr int64_t kFewChannels = 16;                    // with fewer input channels, ungrouped: a K block is a row of taps

struct ConvShape {
  int64_t batch, height, width, in_channels;
  int64_t out_height, out_width, channels;
  int64_t kernel_height, kernel_width;
  int64_t stride_height, stride_width;
  int64_t top, left;  // padding
  int64_t dilation_height, dilation_width;
  int64_t groups;
  int64_t planes = 1, out_planes = 1, kernel_planes = 1, stride_planes = 1;
  int64_t front = 0;  // padding
  int64_t dilation_planes = 1;

  FXQ_INLINE int64_t kernel_rows() const { return kernel_planes * kernel_height; }
  FXQ_INLINE int64_t taps() const { return kernel_rows() * kernel_width; }
  FXQ_INLINE int64_t all_planes() const { return batch * out_planes; }
  FXQ_INLINE int64_t out_pixels() const { return all_planes() * out_height * out_width; }  // of the whole batch
  FXQ_INLINE bool empty() const { return out_pixels() == 0 || channels == 0; }
  // In a depthwise convolution each output channel reads the input channel of the same number alone.
  FXQ_INLINE bool depthwise() const { return groups > 1 && groups == in_channels && groups == channels; }
  FXQ_INLINE bool has_few_channels() const { return taps() > 1 && in_channels < kFewChannels && groups == 1; }
  // In a pointwise convolution pixel i of the result reads pixel i of the input alone.
  FXQ_INLINE bool is_pointwise() const {
    return taps() == 1 && stride_planes == 1 && stride_height == 1 && stride_width == 1 && out_planes == planes &&
           out_height == height && out_width == width && front == 0 && top == 0 && left == 0;
  }

  // The division of the packed weight. panels() and n_blocks() count those of one group bundle. A depthwise convolution
  // has N blocks of one panel.
  FXQ_INLINE int64_t groups_per_bundle() const {
    if (groups == 1 || channels == 0) return 1;
    const int64_t most = kPanel * groups / channels;
    for (int64_t count = most < groups ? most : groups; count > 1; --count) {
      if (groups % count == 0) return count;
    }
    return 1;
  }
  FXQ_INLINE int64_t group_bundles() const { return depthwise() ? 1 : groups / groups_per_bundle(); }
  FXQ_INLINE int64_t group_bundle_channels() const { return channels / group_bundles(); }
  FXQ_INLINE int64_t group_bundle_in_channels() const { return in_channels / group_bundles(); }
  FXQ_INLINE int64_t panels() const { return (group_bundle_channels() + kPanel - 1) / kPanel; }
  FXQ_INLINE int64_t n_blocks() const {
    return depthwise() ? panels() : (panels() + kNBlockPanels - 1) / kNBlockPanels;
  }
  FXQ_INLINE int64_t first_panel(int64_t block) const { return block * panels() / n_blocks(); }
  FXQ_INLINE int64_t k_blocks() const {
    return depthwise() ? kernel_width : has_few_channels() ? kernel_rows() : taps();
  }
  FXQ_INLINE int64_t k_block_bytes() const {
    return depthwise() ? kernel_rows() : has_few_channels() ? kernel_width * in_channels : group_bundle_in_channels();
  }
  FXQ_INLINE int64_t k_groups() const { return (k_block_bytes() + kKGroup - 1) / kKGroup; }
  FXQ_INLINE int64_t panel_bytes() const { return k_blocks() * k_groups() * kPanelGroupBytes; }
};

// A linear layer is a pointwise convolution of one row of pixels.
FXQ_INLINE ConvShape linear_shape(int64_t rows, int64_t in_channels, int64_t channels) {
  return {1, 1, rows, in_channels, 1, rows, channels, 1, 1, 1, 1, 0, 0, 1, 1, 1};
}

}  // namespace fxquant
