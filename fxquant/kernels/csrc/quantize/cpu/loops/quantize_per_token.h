#pragma once
#include "common/types.h"
#include "cpu/isa.h"
#include "math/qparams.h"

namespace fxquant {

struct QuantizePerTokenArgs {
  Float type;  // of x
  bool to_signed;
  const void* x;  // [rows, columns]
  void* q;
  float* scale;         // [rows]
  int32_t* zero_point;  // [rows]
  int64_t columns;
  QParamsOptions choice;

  template <typename Visitor>
  void pointers(Visitor& visit) const {
    visit.tensor(x);
    visit.tensor(q);
    visit.tensor(scale);
    visit.tensor(zero_point);
  }
};

}  // namespace fxquant

// Quantizes the rows begin <= i < end.
FXQ_DECLARE_LOOP(quantize_per_token_loop, (const QuantizePerTokenArgs& args, int64_t begin, int64_t end))
