#pragma once
#include "cpu/isa.h"
#include "math/requantize.h"
#include "norm/cpu/loops/rows_together.h"
#include "norm/row_type.h"

namespace fxquant {

struct LayerNormArgs {
  const void* x;  // [rows, columns]
  const float* weight;
  const float* bias;
  uint8_t* y;
  RowType type;
  int64_t columns;
  double eps;  // with a quantized x in squared quantized units
  OutputQParams y_qparams;

  template <typename Visitor>
  void pointers(Visitor& visit) const {
    visit.tensor(x);
    visit.tensor(weight);
    visit.tensor(bias);
    visit.tensor(y);
  }
};

}  // namespace fxquant

// steps: memory for rows_together(columns) rows of int32.
FXQ_DECLARE_LOOP(layer_norm_loop, (const LayerNormArgs& args, int64_t begin, int64_t end, int32_t* steps))
