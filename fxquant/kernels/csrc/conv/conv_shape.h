// How a convolution walks over volumes stored as [batch, planes, height, width, depth]; an image is a volume of one plane.
// No torch: for loops and CUDA alike.
#pragma once
#include <cstdint>

// For methods that loops of several instruction sets call: out of line, the sets would share one set's version. And for
// what handles arrays that shall never lie in memory.
#define FXQ_INLINE __attribute__((always_inline)) inline

namespace fxquant {

constexpr int64_t kPanel = 16;     // output channels of a register
constexpr int64_t kNBlockPanels = 4;  // that lie together in a packed weight, at most
constexpr int64_t kKGroup = 4;       // bytes of the input that are multiplied together
constexpr int64_t kMaxTaps = 1 << 16;  // elements of a kernel's window
constexpr int64_t kFewChannels = 16;  // input channels below which a row of taps is read as if it were one pixel

struct ConvShape {
  int64_t batch, height, width, depth;
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
  FXQ_INLINE int64_t all_planes() const { return batch * out_planes; }  // of the result
  FXQ_INLINE int64_t rows() const { return all_planes() * out_height * out_width; }
  FXQ_INLINE bool empty() const { return rows() == 0 || channels == 0; }
  // Whether each channel of the result is made of the same channel of the input.
  FXQ_INLINE bool depthwise() const { return groups > 1 && groups == depth && groups == channels; }
  FXQ_INLINE bool has_few_channels() const { return taps() > 1 && depth < kFewChannels && groups == 1; }
  // Whether pixel i of the result is made of pixel i of the input alone.
  FXQ_INLINE bool is_pointwise() const {
    return taps() == 1 && stride_planes == 1 && stride_height == 1 && stride_width == 1 && out_planes == planes &&
           out_height == height && out_width == width && front == 0 && top == 0 && left == 0;
  }

  // Of the packed weight: [bundles][blocks][pieces][quads][panels of the block][kPanel][kQuad], as kernels/conv/packing.py
  // says; a block is one panel of a depthwise convolution.
  FXQ_INLINE int64_t groups_per_bundle() const {  // groups of a bundle
    if (groups == 1 || channels == 0) return 1;
    const int64_t most = kPanel * groups / channels;
    for (int64_t count = most < groups ? most : groups; count > 1; --count) {
      if (groups % count == 0) return count;
    }
    return 1;
  }
  FXQ_INLINE int64_t group_bundles() const { return depthwise() ? 1 : groups / groups_per_bundle(); }
  FXQ_INLINE int64_t group_bundle_channels() const { return channels / group_bundles(); }
  FXQ_INLINE int64_t group_bundle_depth() const { return depth / group_bundles(); }
  FXQ_INLINE int64_t panels() const { return (group_bundle_channels() + kPanel - 1) / kPanel; }  // of a bundle
  FXQ_INLINE int64_t n_blocks() const { return (panels() + kNBlockPanels - 1) / kNBlockPanels; }  // of a bundle
  FXQ_INLINE int64_t first_panel(int64_t block) const { return block * panels() / n_blocks(); }
  FXQ_INLINE int64_t k_blocks() const {
    return depthwise() ? kernel_width : has_few_channels() ? kernel_rows() : taps();
  }
  FXQ_INLINE int64_t k_block_bytes() const {  // bytes
    return depthwise() ? kernel_rows() : has_few_channels() ? kernel_width * depth : group_bundle_depth();
  }
  FXQ_INLINE int64_t k_groups() const { return (k_block_bytes() + kKGroup - 1) / kKGroup; }
  FXQ_INLINE int64_t panel_bytes() const { return k_blocks() * k_groups() * kPanel * kKGroup; }  // bytes
};

// Of a linear layer.
FXQ_INLINE ConvShape linear_shape(int64_t rows, int64_t depth, int64_t channels) {
  return {1, 1, rows, depth, 1, rows, channels, 1, 1, 1, 1, 0, 0, 1, 1, 1};
}

}  // namespace fxquant
