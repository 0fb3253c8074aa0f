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
  // The task before wrote `parts` parts, `step` rows apart: in each, `rows` rows and `channels` channels.
  int64_t parts = 0;
  int64_t step = 0;
  int64_t row = 0;
  int64_t rows = 0;
  int64_t channel = 0;
  int64_t channels = 0;

  // Notes what a task wrote, and looks up what the one before wrote.
  void next(const DeferredLookup& task) {
    if (parts == task.parts && row == task.row && rows == task.rows && channel + channels == task.channel) {
      channels += task.channels;  // These are the next channels of the same rows.
      return;
    }
    finish();
    parts = task.parts;
    step = task.step;
    row = task.row;
    rows = task.rows;
    channel = task.channel;
    channels = task.channels;
  }

  // Looks up what the last task wrote.
  void finish() const {
    const int64_t row_bytes = a.shape.channels;
    const Bytes bytes = channels == row_bytes ? Bytes{1, 0, rows * row_bytes} : Bytes{rows, row_bytes, channels};
    for (int64_t i = 0; i < parts; ++i) {
      uint8_t* y = a.y + (row + i * step) * row_bytes + channel;
      look_up(y, a.table, y, bytes);
    }
  }
};

}  // namespace
}  // namespace FXQ_ISA
}  // namespace fxquant
