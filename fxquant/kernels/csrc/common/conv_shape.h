// How a convolution walks over images stored as [batch, height, width, depth]. No torch: for loops and CUDA alike.
#pragma once
#include <cstdint>

namespace fxquant {

constexpr int64_t kPanel = 16;     // output channels that lie together in a packed weight
constexpr int64_t kQuad = 4;       // input channels that do
constexpr int64_t kMaxTaps = 256;  // elements of a kernel's window
constexpr int64_t kFewDepth = 16;  // input channels below which a window is gathered first, and multiplied as one pixel

struct ConvShape {
  int64_t batch, height, width, depth;
  int64_t out_height, out_width, channels;
  int64_t kernel_height, kernel_width;
  int64_t stride_height, stride_width;
  int64_t top, left;  // padding
  int64_t dilation_height, dilation_width;
  bool depthwise;  // each channel of the result is made of the same channel of the input

  int64_t taps() const { return kernel_height * kernel_width; }
  bool gathers() const { return taps() > 1 && depth < kFewDepth && !depthwise; }
  // Of the packed weight: [panels][pieces][quads][kPanel][kQuad]. A piece is a tap, or all of them gathered.
  int64_t pieces() const { return gathers() ? 1 : taps(); }
  int64_t piece() const { return depthwise ? 1 : gathers() ? taps() * depth : depth; }
  int64_t quads() const { return (piece() + kQuad - 1) / kQuad; }
  int64_t panels() const { return (channels + kPanel - 1) / kPanel; }
  int64_t rows() const { return batch * out_height * out_width; }
  bool empty() const { return rows() == 0 || channels == 0; }
  // Whether pixel i of the result is made of pixel i of the input alone.
  bool is_product() const {
    return taps() == 1 && stride_height == 1 && stride_width == 1 && out_height == height && out_width == width &&
           top == 0 && left == 0;
  }
};

// Of a linear layer.
inline ConvShape product_shape(int64_t rows, int64_t depth, int64_t channels) {
  return {1, 1, rows, depth, 1, rows, channels, 1, 1, 1, 1, 0, 0, 1, 1, false};
}

}  // namespace fxquant
