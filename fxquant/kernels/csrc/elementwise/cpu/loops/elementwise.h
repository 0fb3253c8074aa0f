#pragma once
#include "common/strided.h"
#include "cpu/isa.h"
#include "math/requantize.h"

namespace fxquant {

struct ElementwiseArgs {
  const void* a;
  const void* b;  // as a; for prelu float
  void* y;
  bool is_signed;  // int8, else uint8: a, y, and b where it is no float
  const StridedPair* shape;
  float a_scale;
  float b_scale;
  int32_t a_zero_point;
  int32_t b_zero_point;
  OutputQParams y_qparams;

  template <typename Visitor>
  void pointers(Visitor& visit) const {
    visit.tensor(a);
    visit.tensor(b);
    visit.tensor(y);
    visit.array(shape, 1);
  }
};

}  // namespace fxquant

// The elements begin <= i < end of y, in the order of its memory.
FXQ_DECLARE_LOOP(add_loop, (const ElementwiseArgs& args, int64_t begin, int64_t end))
FXQ_DECLARE_LOOP(mul_loop, (const ElementwiseArgs& args, int64_t begin, int64_t end))
FXQ_DECLARE_LOOP(prelu_loop, (const ElementwiseArgs& args, int64_t begin, int64_t end))
