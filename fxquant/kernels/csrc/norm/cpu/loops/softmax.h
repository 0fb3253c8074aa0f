#pragma once
#include "cpu/isa.h"
#include "math/requantize.h"
#include "norm/cpu/loops/rows_together.h"
#include "norm/row_type.h"

namespace fxquant {

struct SoftmaxArgs {
  const void* x;  // [rows, columns]
  uint8_t* y;
  RowType type;
  int64_t columns;
  float x_scale;
  bool safe;
  OutputQParams y_qparams;

  template <typename Visitor>
  void pointers(Visitor& visit) const {
    visit.tensor(x);
    visit.tensor(y);
  }
};

}  // namespace fxquant

// steps: memory for rows_together(columns) rows of int32.
FXQ_DECLARE_LOOP(softmax_loop, (const SoftmaxArgs& args, int64_t begin, int64_t end, int32_t* steps))
