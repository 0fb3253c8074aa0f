#pragma once
#include "common/layout.h"
#include "common/types.h"
#include "cpu/isa.h"

namespace fxquant {

struct DequantizeArgs {
  const void* q;
  Integer type;  // of q
  bool wide;     // whether a difference may need more than 32 bits
  float* y;
  Layout layout;
  const float* scale;         // [channels]
  const int32_t* zero_point;  // [channels]

  template <typename Visitor>
  void pointers(Visitor& visit) const {
    visit.tensor(q);
    visit.tensor(y);
    visit.array(scale, layout.channels);
    visit.array(zero_point, layout.channels);
  }
};

}  // namespace fxquant

FXQ_DECLARE_LOOP(dequantize_loop, (const DequantizeArgs& args, int64_t begin, int64_t end))
