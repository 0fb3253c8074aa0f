// A lookup table that is fused into a convolution. No torch.
#pragma once
#include "conv/cpu/loops/conv_args.h"
#include "table/cpu/loops/look_up.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

// Replaces stored bytes by the entries of the table, one task after they were stored. By then they are in the L1 cache.
// At once they would still be in the store buffer, and loads of another size would have to wait for the stores.
struct DeferredLookup {
  const ConvArgs& a;
  // The task before wrote some rows of the result, `row_stride` pixels apart: in each, `pixels` pixels from number `pixel`
  // on, and `channels` channels from `channel` on.
  int64_t rows = 0;
  int64_t row_stride = 0;
  int64_t pixel = 0;
  int64_t pixels = 0;
  int64_t channel = 0;
  int64_t channels = 0;

  // Notes what a task wrote, and looks up what the one before wrote, unless this task goes on with channels of the same pixels.
  void next(int64_t new_pixel, int64_t new_pixels, int64_t new_channel, int64_t new_channels, int64_t new_rows = 1,
            int64_t new_row_stride = 0) {
    if (rows == new_rows && pixel == new_pixel && pixels == new_pixels && channel + channels == new_channel) {
      channels += new_channels;  // These are the next channels of the same pixels.
      return;
    }
    finish();
    rows = new_rows;
    row_stride = new_row_stride;
    pixel = new_pixel;
    pixels = new_pixels;
    channel = new_channel;
    channels = new_channels;
  }

  // Looks up what the last task wrote.
  void finish() const {
    const int64_t pixel_bytes = a.shape.channels;
    const Bytes bytes =
        channels == pixel_bytes ? Bytes{1, 0, pixels * pixel_bytes} : Bytes{pixels, pixel_bytes, channels};
    for (int64_t i = 0; i < rows; ++i) {
      uint8_t* y = a.y + (pixel + i * row_stride) * pixel_bytes + channel;
      look_up(y, a.table, y, bytes);
    }
  }
};

}  // namespace
}  // namespace FXQ_ISA
}  // namespace fxquant
