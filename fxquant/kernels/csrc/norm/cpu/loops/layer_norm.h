#pragma once
#include "cpu/isa.h"
#include "math/requantize.h"
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

// Rows that are summed before the first of them is stored: while one row waits for its moments, others are summed.
static inline int64_t rows_together(int64_t columns) { return columns <= 512 ? 4 : 1; }

}  // namespace fxquant

// steps: memory for so many rows of int32.
FXQ_DECLARE_LOOP(layer_norm_loop, (const LayerNormArgs& args, int64_t begin, int64_t end, int32_t* steps))
