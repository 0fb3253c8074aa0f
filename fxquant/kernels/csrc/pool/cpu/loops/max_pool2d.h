#pragma once
#include "cpu/isa.h"
#include "math/window.h"

namespace fxquant {

struct MaxPoolArgs {
  const void* x;
  void* y;
  bool is_signed;
  int64_t channels;  // innermost; 1 where the tensor is no channels_last one
  PoolAxis rows;
  PoolAxis columns;
  const Window* row_windows;     // [rows.outputs]
  const Window* column_windows;  // [columns.outputs]

  template <typename Visitor>
  void pointers(Visitor& visit) const {
    visit.tensor(x);
    visit.tensor(y);
    visit.array(row_windows, rows.outputs);
    visit.array(column_windows, columns.outputs);
  }
};

}  // namespace fxquant

// The rows begin <= i < end of the output, counted through all planes. scratch: [columns.size * channels] of this thread.
FXQ_DECLARE_LOOP(max_pool2d_loop, (const MaxPoolArgs& args, int64_t begin, int64_t end, uint8_t* scratch))
