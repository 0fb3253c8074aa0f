// The rows of bytes that tiles of a convolution read, for one strip: x itself or a copy of what the strip reads. No torch.
//
// In a padded NHWC image the input of tap (i, j) of a window lies i lines and j pixels behind that of its first tap, for
// every pixel of the result. So a tile of 16 successive pixels is 16 rows, one pixel (or a stride) apart, for each tap.
#pragma once
#include <cstring>

#include "conv/cpu/loops/conv2d_tiles.h"
#include "conv/cpu/loops/tap_pointers.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

// A strip of the result: rows and columns of one plane.
struct TileStrip {
  int64_t number = -1;
  int64_t plane = 0, row = 0, column = 0;  // where it begins
  int64_t rows = 0, columns = 0;

  static TileStrip at(const TileConvArgs& a, int64_t number) {
    const int64_t inside = number % a.strips_per_plane();
    TileStrip strip;
    strip.number = number;
    strip.plane = number / a.strips_per_plane();
    strip.row = inside / a.strips_per_row() * a.strip_rows;
    strip.column = inside % a.strips_per_row() * a.strip_columns;
    strip.rows = a.rows - strip.row < a.strip_rows ? a.rows - strip.row : a.strip_rows;
    strip.columns = a.columns - strip.column < a.strip_columns ? a.columns - strip.column : a.strip_columns;
    return strip;
  }
  // Its first pixel in the result.
  int64_t first(const TileConvArgs& a) const { return (plane * a.rows + row) * a.columns + column; }
};

class TileInputReader {
 public:
  // `memory` has the gather_bytes() and input_bytes() of the arguments.
  TileInputReader(const TileConvArgs& args, uint8_t* memory)
      : a_(args), flip_(args.x_signed ? 0x80 : 0), taps_(args, memory), copy_(memory + args.gather_bytes()) {}

  int64_t pixel_bytes() const {  // from one pixel of the result to the next
    return a_.input == TileInput::kGathered ? a_.k_size() : a_.shape.stride_width * a_.shape.in_channels;
  }
  int64_t row_bytes() const {  // from one row of the result to the next
    return a_.shape.stride_height * a_.line() * a_.shape.in_channels;
  }

  // Writes the distances of the K blocks from the first one of a pixel.
  void find_offsets(int64_t* offsets) const {
    const ConvShape& s = a_.shape;
    if (a_.input == TileInput::kGathered) {
      offsets[0] = 0;
      return;
    }
    const int64_t line = a_.line() * s.in_channels;
    const int64_t lines = a_.input == TileInput::kInPlace ? s.height * s.dilation_planes : a_.read_rows(a_.strip_rows);
    const int64_t per_row = s.has_few_channels() ? 1 : s.kernel_width;  // K blocks of a row of taps
    for (int64_t d = 0; d < s.kernel_planes; ++d) {
      for (int64_t i = 0; i < s.kernel_height; ++i) {
        for (int64_t j = 0; j < per_row; ++j) {
          *offsets++ = (d * lines + i * s.dilation_height) * line + j * s.dilation_width * s.in_channels;
        }
      }
    }
  }

  // Returns the first byte that the first pixel of a strip reads for a group bundle, having copied what has to be.
  const uint8_t* read(const TileStrip& strip, int64_t bundle) {
    const ConvShape& s = a_.shape;
    const int64_t shift = bundle * s.group_bundle_in_channels();
    if (a_.input == TileInput::kGathered) {
      if (strip.number != strip_ || bundle != bundle_) gather(strip, shift);
      strip_ = strip.number;
      bundle_ = bundle;
      return copy_;
    }
    if (a_.input == TileInput::kCopied) {
      if (strip.number != strip_) copy(strip);
      strip_ = strip.number;
      return copy_ + shift;
    }
    const int64_t plane = strip.plane / s.out_planes * s.planes + strip.plane % s.out_planes * s.stride_planes;
    const int64_t pixel =
        (plane * s.height + strip.row * s.stride_height) * s.width + strip.column * s.stride_width;
    return a_.x + pixel * s.in_channels + shift;
  }

 private:
  const TileConvArgs& a_;
  const uint8_t flip_;  // between int8 and uint8
  Strip taps_;
  uint8_t* const copy_;
  int64_t strip_ = -1, bundle_ = -1;  // whose input the copy is

  static void copy_bytes(const uint8_t* from, int64_t count, uint8_t flip, uint8_t* to) {
    if (flip == 0) {
      std::memcpy(to, from, count);
    } else {
      for (int64_t i = 0; i < count; ++i) to[i] = from[i] ^ flip;
    }
  }

  uint8_t* pad(int64_t pixels, uint8_t* to) const {
    const int64_t bytes = pixels * a_.shape.in_channels;
    if (bytes > 0) std::memset(to, a_.padding_values[0] ^ flip_, bytes);
    return to + bytes;
  }

  // Copies the rows of pixels that a strip reads: [kernel planes][rows][line][in_channels].
  void copy(const TileStrip& strip) {
    const ConvShape& s = a_.shape;
    const int64_t image = strip.plane / s.out_planes;
    const int64_t front = strip.plane % s.out_planes * s.stride_planes - s.front;
    const int64_t top = strip.row * s.stride_height - s.top, left = strip.column * s.stride_width - s.left;
    const int64_t all_rows = a_.read_rows(a_.strip_rows), line = a_.line(), line_bytes = line * s.in_channels;
    const int64_t some_rows = a_.read_rows(strip.rows), columns = a_.read_columns(strip.columns);
    // The columns of x that lie in the strip, from its column `before` on.
    const int64_t before = left >= 0 ? 0 : -left < columns ? -left : columns;
    const int64_t right = s.width - left < columns ? s.width - left : columns;
    const int64_t inside = right > before ? right - before : 0;
    for (int64_t k = 0; k < s.kernel_planes; ++k) {
      const int64_t d = front + k * s.dilation_planes;
      for (int64_t i = 0; i < some_rows; ++i) {
        uint8_t* to = copy_ + (k * all_rows + i) * line_bytes;
        const int64_t h = top + i;
        if (d < 0 || d >= s.planes || h < 0 || h >= s.height || inside == 0) {
          pad(columns, to);
          continue;
        }
        const uint8_t* row = a_.x + ((image * s.planes + d) * s.height + h) * s.width * s.in_channels;
        to = pad(before, to);
        copy_bytes(row + (left + before) * s.in_channels, inside * s.in_channels, flip_, to);
        pad(columns - before - inside, to + inside * s.in_channels);
      }
    }
  }

  // Copies the window of each pixel of a strip: [pixels][K].
  void gather(const TileStrip& strip, int64_t shift) {
    const ConvShape& s = a_.shape;
    const int64_t k_size = a_.k_size(), step = s.k_groups() * kKGroup, bytes = s.k_block_bytes();
    const int64_t end = strip.column + strip.columns;
    uint8_t* to = copy_;
    for (int64_t row = strip.column; row < end; row += taps_.count, to += taps_.count * k_size) {
      taps_.find(row, end);
      for (int64_t i = 0; i < s.k_blocks(); ++i) {
        for (int64_t r = 0; r < taps_.count; ++r) {
          copy_bytes(taps_.pointers[i * kStripPixels + r] + shift, bytes, flip_, to + r * k_size + i * step);
        }
      }
    }
  }
};

}  // namespace
}  // namespace FXQ_ISA
}  // namespace fxquant
