// Where the input of a convolution lies that some pixels of its result are made of. No torch.
#pragma once
#include <cstring>

#include "conv2d.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

// Successive pixels of the result, in the order of memory: kStripRows at most.
struct Strip {
  const ConvArgs& a;
  int64_t first = 0;
  int64_t count = 0;
  const uint8_t* at[kMaxTaps * kStripRows];  // [pieces][kStripRows]
  // Of few channels: rows of taps, copied so that what a window lacks is there.
  uint8_t copied[kStripRows * (kMaxTaps * kFewDepth + kMaxTaps * kQuad)];

  explicit Strip(const ConvArgs& args) : a(args) {}

  // From `row` on, of all that there are before `end`.
  void find(int64_t row, int64_t end) {
    const ConvShape& s = a.shape;
    const int64_t left = end - row;
    first = row;
    count = left < kStripRows ? left : kStripRows;
    if (s.is_product()) {
      for (int64_t r = 0; r < count; ++r) at[r] = a.x + (row + r) * s.depth;
      return;
    }
    uint8_t* free = copied;
    for (int64_t r = 0; r < count;) {  // a part lies in one row of an image
      const int64_t line = (row + r) / s.out_width;
      const int64_t from = (row + r) % s.out_width;
      const int64_t part = s.out_width - from < count - r ? s.out_width - from : count - r;
      const int64_t image = line / s.out_height;
      const int64_t top = line % s.out_height * s.stride_height - s.top;
      const int64_t start = from * s.stride_width - s.left;
      if (s.has_few()) {
        copy(image, top, start, r, part, free);
      } else {
        point(image, top, start, r, part);
      }
      r += part;
    }
  }

 private:
  void point(int64_t image, int64_t top, int64_t start, int64_t r, int64_t part) {
    const ConvShape& s = a.shape;
    const uint8_t** to = at + r;
    for (int64_t i = 0; i < s.kernel_height; ++i) {
      const int64_t h = top + i * s.dilation_height;
      const bool inside = h >= 0 && h < s.height;
      const uint8_t* line = inside ? a.x + (image * s.height + h) * s.width * s.depth : nullptr;
      for (int64_t j = 0; j < s.kernel_width; ++j, to += kStripRows) {
        int64_t w = start + j * s.dilation_width;
        for (int64_t n = 0; n < part; ++n, w += s.stride_width) {
          to[n] = inside && w >= 0 && w < s.width ? line + w * s.depth : a.outside;
        }
      }
    }
  }

  // Neighbouring windows share what is copied, if they overlap.
  void copy(int64_t image, int64_t top, int64_t start, int64_t r, int64_t part, uint8_t*& to) {
    const ConvShape& s = a.shape;
    const bool shares = s.dilation_width == 1 && s.stride_width <= s.kernel_width;
    const int64_t run = s.kernel_width * s.depth;
    for (int64_t i = 0; i < s.kernel_height; ++i) {
      const int64_t h = top + i * s.dilation_height;
      const uint8_t* line = h >= 0 && h < s.height ? a.x + (image * s.height + h) * s.width * s.depth : nullptr;
      const uint8_t** rows = at + i * kStripRows + r;
      if (shares) {
        for (int64_t n = 0; n < part; ++n) rows[n] = to + n * s.stride_width * s.depth;
        to = copy_pixels(line, start, 1, (part - 1) * s.stride_width + s.kernel_width, to);
        to += kQuad;  // as much as is read beyond
        continue;
      }
      for (int64_t n = 0; n < part; ++n) {
        rows[n] = to;
        to = copy_pixels(line, start + n * s.stride_width, s.dilation_width, s.kernel_width, to);
        to += (run + kQuad - 1) / kQuad * kQuad - run;
      }
    }
  }

  uint8_t* copy_pixels(const uint8_t* line, int64_t w, int64_t step, int64_t pixels, uint8_t* to) const {
    const ConvShape& s = a.shape;
    const int64_t depth = s.depth;
    int64_t n = 0;
    if (step == 1 && line != nullptr) {
      for (; n < pixels && w + n < 0; ++n, to += depth) std::memcpy(to, a.outside, depth);
      const int64_t inside = s.width - (w + n) < pixels - n ? s.width - (w + n) : pixels - n;
      if (inside > 0) {
        std::memcpy(to, line + (w + n) * depth, inside * depth);
        n += inside;
        to += inside * depth;
      }
    }
    for (; n < pixels; ++n, to += depth) {
      const int64_t column = w + n * step;
      const bool is_pixel = line != nullptr && column >= 0 && column < s.width;
      std::memcpy(to, is_pixel ? line + column * depth : a.outside, depth);
    }
    return to;
  }
};

}  // namespace
}  // namespace FXQ_ISA
}  // namespace fxquant
