// Runs a loop on what elementwise/elementwise.h prepared.
#pragma once
#include "cpu/launch.h"
#include "elementwise/cpu/loops/elementwise.h"
#include "elementwise/elementwise.h"

namespace fxquant {

inline Tensor elementwise_cpu(const Tensor& a, const Tensor& b, const Elementwise& e, LoopOf<ElementwiseArgs> loop) {
  const ElementwiseArgs args{a.const_data_ptr(),
                             b.const_data_ptr(),
                             e.y.mutable_data_ptr(),
                             a.scalar_type() == ScalarType::Char,
                             &e.shape,
                             e.numbers.a_scale,
                             e.numbers.b_scale,
                             e.numbers.a_zero_point,
                             e.numbers.b_zero_point,
                             e.numbers.y_qparams};
  launch(args, e.y.numel(), kGrain, loop);
  return e.y;
}

}  // namespace fxquant
