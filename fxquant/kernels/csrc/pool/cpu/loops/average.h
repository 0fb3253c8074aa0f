#pragma once
#include "cpu/isa.h"
#include "math/requantize.h"
#include "math/window.h"

namespace fxquant {

constexpr int64_t kChannelBlock = 256;  // channels of a task: enough to be worth one, few enough to share a window

struct AverageArgs {
  const void* x;
  void* y;
  bool is_signed;
  int64_t elements;  // of the largest window
  int64_t channels;  // innermost; 1 where the tensor is no channels_last one
  PoolAxis rows;
  PoolAxis columns;
  const Window* row_windows;     // [rows.outputs]
  const Window* column_windows;  // [columns.outputs]
  bool count_padding;
  int64_t divisor;  // 0: the number of elements
  float x_scale;
  int32_t x_zero_point;
  OutputQParams y_qparams;

  template <typename Visitor>
  void pointers(Visitor& visit) const {
    visit.tensor(x);
    visit.tensor(y);
    visit.array(row_windows, rows.outputs);
    visit.array(column_windows, columns.outputs);
  }
};

}  // namespace fxquant

// The tasks begin <= i < end: a window (counted through all planes) and a block of its channels each.
FXQ_DECLARE_LOOP(average_loop, (const AverageArgs& args, int64_t begin, int64_t end))
