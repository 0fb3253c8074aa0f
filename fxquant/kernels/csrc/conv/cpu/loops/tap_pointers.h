// Pointers to the input of a strip: for each K block and each pixel of the strip, the bytes that are multiplied. No torch.
//
// A K block is one tap, and its pointer leads into x, or to the padding values where the tap lies in the padding. With few
// channels a K block is a row of taps, which is copied, so that padding stands in it.
#pragma once
#include <cstring>

#include "conv/cpu/loops/conv2d.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

// At most kStripPixels successive pixels of the result, in the order of memory.
struct Strip {
  const Conv2dArgs& a;
  const uint8_t** pointers;  // [K blocks][kStripPixels]
  int64_t first = 0;
  int64_t count = 0;

  // The memory is that of Conv2dArgs::scratch().
  Strip(const Conv2dArgs& args, uint8_t* memory)
      : a(args), pointers(reinterpret_cast<const uint8_t**>(memory)), copied_(memory + args.pointer_bytes()) {}

  // Takes the pixels from `pixel` on that lie before `end`, and finds their pointers.
  void find(int64_t pixel, int64_t end) {
    const ConvShape& s = a.shape;
    const int64_t remaining = end - pixel;
    first = pixel;
    count = remaining < kStripPixels ? remaining : kStripPixels;
    if (s.is_pointwise()) {
      for (int64_t r = 0; r < count; ++r) pointers[r] = a.x + (pixel + r) * a.x_step;
      return;
    }
    uint8_t* next_copy = copied_;
    // Divide the strip into parts that lie in one row of a plane each.
    for (int64_t r = 0; r < count;) {
      const int64_t out_row = (pixel + r) / s.out_width;
      const int64_t from = (pixel + r) % s.out_width;
      const int64_t most = s.out_width - from < count - r ? s.out_width - from : count - r;
      const int64_t plane = out_row / s.out_height;
      const int64_t image = s.out_planes == 1 ? plane : plane / s.out_planes;
      const PixelsOfRow part{image, (plane - image * s.out_planes) * s.stride_planes - s.front,
                               out_row % s.out_height * s.stride_height - s.top, from * s.stride_width - s.left, r, most};
      if (s.has_few_channels()) {
        for_each_row(part, [&](int64_t i, const uint8_t* pixels) { next_copy = copy(part, i, pixels, next_copy); });
      } else {
        for_each_row(part, [&](int64_t i, const uint8_t* pixels) { set_pointers(part, i, pixels); });
      }
      r += most;
    }
  }

 private:
  // Pixels in one row of the result, and the plane, row and column where the window of the first one begins, maybe in the
  // padding.
  struct PixelsOfRow {
    int64_t image, plane, row, column;
    int64_t first;  // its index in the strip
    int64_t count;
  };

  // With few channels: copies of rows of taps, with padding.
  uint8_t* const copied_;

  // Calls f(i, pixels) for each row of taps, with the row of the input that it reads, or with null for padding.
  template <typename F>
  FXQ_INLINE void for_each_row(const PixelsOfRow& part, F f) const {
    const ConvShape& s = a.shape;
    int64_t i = 0;
    for (int64_t k = 0; k < s.kernel_planes; ++k) {
      const int64_t d = part.plane + k * s.dilation_planes;
      const bool inside = d >= 0 && d < s.planes;
      for (int64_t j = 0; j < s.kernel_height; ++j, ++i) {
        const int64_t h = part.row + j * s.dilation_height;
        const bool is_row = inside && h >= 0 && h < s.height;
        f(i, is_row ? a.x + ((part.image * s.planes + d) * s.height + h) * s.width * a.x_step : nullptr);
      }
    }
  }

  // Sets the pointers of one row of taps.
  FXQ_INLINE void set_pointers(const PixelsOfRow& part, int64_t i, const uint8_t* x_row) {
    constexpr int64_t kShort = 16;  // Fewer pixels are tested one by one, which is quicker than to find a run of them.
    const ConvShape& s = a.shape;
    const uint8_t** to = pointers + i * s.kernel_width * kStripPixels + part.first;
    for (int64_t j = 0; j < s.kernel_width; ++j, to += kStripPixels) {
      int64_t w = part.column + j * s.dilation_width;
      if (x_row != nullptr && part.count >= kShort) {
        set_run(x_row, w, part.count, to);
        continue;
      }
      for (int64_t n = 0; n < part.count; ++n, w += s.stride_width) {
        to[n] = x_row != nullptr && w >= 0 && w < s.width ? x_row + w * a.x_step : a.padding_values;
      }
    }
  }

  // Sets the pointers of one tap to the columns w, w + stride, ... of a row. Those inside of the row are one run, which vector
  // instructions write.
  FXQ_INLINE void set_run(const uint8_t* x_row, int64_t w, int64_t count, const uint8_t** to) const {
    const int64_t width = a.shape.width, stride = a.shape.stride_width, step = stride * a.x_step;
    int64_t begin = w < 0 ? (stride - 1 - w) / stride : 0;
    int64_t end = w >= width ? 0 : w + (count - 1) * stride < width ? count : (width - 1 - w) / stride + 1;
    if (begin > count) begin = count;
    if (end < begin) end = begin;
    for (int64_t n = 0; n < begin; ++n) to[n] = a.padding_values;
    for (int64_t n = begin; n < end; ++n) to[n] = x_row + (w * a.x_step + n * step);
    for (int64_t n = end; n < count; ++n) to[n] = a.padding_values;
  }

  // Copies one row of taps for all pixels of a part, and returns where the next copy goes. Overlapping windows share it.
  FXQ_INLINE uint8_t* copy(const PixelsOfRow& part, int64_t i, const uint8_t* x_row, uint8_t* to) {
    const ConvShape& s = a.shape;
    const int64_t row_bytes = s.kernel_width * s.in_channels;  // of a row of taps
    const uint8_t** rows = pointers + i * kStripPixels + part.first;
    if (s.dilation_width == 1 && s.stride_width <= s.kernel_width) {
      for (int64_t n = 0; n < part.count; ++n) rows[n] = to + n * s.stride_width * s.in_channels;
      to = copy_pixels(x_row, part.column, 1, (part.count - 1) * s.stride_width + s.kernel_width, to);
      return to + kKGroup;  // The last K group is read beyond its end.
    }
    for (int64_t n = 0; n < part.count; ++n) {
      rows[n] = to;
      to = copy_pixels(x_row, part.column + n * s.stride_width, s.dilation_width, s.kernel_width, to);
      to += (row_bytes + kKGroup - 1) / kKGroup * kKGroup - row_bytes;
    }
    return to;
  }

  // Copies `pixels` pixels of a row of x, `dilation` columns apart, from column w on. Columns outside of x give padding.
  uint8_t* copy_pixels(const uint8_t* x_row, int64_t w, int64_t dilation, int64_t pixels, uint8_t* to) const {
    const ConvShape& s = a.shape;
    const int64_t in_channels = s.in_channels;
    int64_t n = 0;
    if (dilation == 1 && x_row != nullptr) {
      for (; n < pixels && w + n < 0; ++n, to += in_channels) std::memcpy(to, a.padding_values, in_channels);
      const int64_t inside = s.width - (w + n) < pixels - n ? s.width - (w + n) : pixels - n;
      if (inside > 0) {
        std::memcpy(to, x_row + (w + n) * in_channels, inside * in_channels);
        n += inside;
        to += inside * in_channels;
      }
    }
    for (; n < pixels; ++n, to += in_channels) {
      const int64_t column = w + n * dilation;
      const bool is_pixel = x_row != nullptr && column >= 0 && column < s.width;
      std::memcpy(to, is_pixel ? x_row + column * in_channels : a.padding_values, in_channels);
    }
    return to;
  }
};

}  // namespace
}  // namespace FXQ_ISA
}  // namespace fxquant
