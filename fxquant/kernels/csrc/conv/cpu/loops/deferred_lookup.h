// Bytes of a convolution's result, looked up in a table. No torch.
#pragma once
#include "conv/cpu/loops/conv2d.h"
#include "table/cpu/loops/look_up.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

// Puts the table's entries in place of what was stored, one task later: it is in the first cache then, and no longer on
// its way there, where loads of other sizes than the stores would have to wait for them.
struct DeferredLookup {
  const ConvArgs& a;
  int64_t parts = 0;  // of the task before: each so many rows from `row` on, so many channels from `channel` on
  int64_t step = 0;   // rows from part to part
  int64_t row = 0;
  int64_t rows = 0;
  int64_t channel = 0;
  int64_t channels = 0;

  void next(const DeferredLookup& task) {
    if (parts == task.parts && row == task.row && rows == task.rows && channel + channels == task.channel) {
      channels += task.channels;  // the next channels of the same rows
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

  void finish() const {
    const int64_t line = a.shape.channels;
    const Bytes bytes = channels == line ? Bytes{1, 0, rows * line} : Bytes{rows, line, channels};
    for (int64_t i = 0; i < parts; ++i) {
      uint8_t* y = a.y + (row + i * step) * line + channel;
      look_up(y, a.table, y, bytes);
    }
  }
};

}  // namespace
}  // namespace FXQ_ISA
}  // namespace fxquant
