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
  // The task before wrote `parts` parts, `step` pixels apart: in each, `pixels` pixels and `channels` channels.
  int64_t parts = 0;
  int64_t step = 0;
  int64_t pixel = 0;
  int64_t pixels = 0;
  int64_t channel = 0;
  int64_t channels = 0;

  // Notes what a task wrote, and looks up what the one before wrote.
  void next(int64_t new_pixel, int64_t new_pixels, int64_t new_channel, int64_t new_channels, int64_t new_parts = 1,
            int64_t new_step = 0) {
    if (parts == new_parts && pixel == new_pixel && pixels == new_pixels && channel + channels == new_channel) {
      channels += new_channels;  // These are the next channels of the same pixels.
      return;
    }
    finish();
    parts = new_parts;
    step = new_step;
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
    for (int64_t i = 0; i < parts; ++i) {
      uint8_t* y = a.y + (pixel + i * step) * pixel_bytes + channel;
      look_up(y, a.table, y, bytes);
    }
  }
};

}  // namespace
}  // namespace FXQ_ISA
}  // namespace fxquant
