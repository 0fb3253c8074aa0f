// A weight that is quantized as a batch norm will fold it: times a factor, rounded, and divided by it again.
#pragma once
#include "math/affine.h"

namespace fxquant {

// Value, its derivative by x, and its derivative by the factor.
template <typename Real>
struct Folded {
  Real value;
  bool passes;
  Real slope;
};

template <typename Real>
FXQ_HOST_DEVICE Folded<Real> folded(Real x, Real factor, const Affine<Real>& a) {
  const Real q = round_to_quantized(x * factor, a);
  const bool passes = inside(q, a);
  const Real value = dequantize(saturate(q, a), a) / factor;
  return {value, passes, ((passes ? x : Real{0}) - value) / factor};
}

}  // namespace fxquant
