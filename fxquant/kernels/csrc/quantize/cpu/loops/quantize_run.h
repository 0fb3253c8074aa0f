// A stretch of float values that have one scale and one zero point, to quantized values.
#pragma once
#include "cpu/isa.h"
#include "cpu/loops/blocks.h"
#include "math/affine.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

// By way of int32, which every limit fits: a direct cast of a float to a byte does not vectorise.
template <typename Q, typename Real>
inline Q to_integer(Real q) {
  return static_cast<Q>(static_cast<int32_t>(q));
}

template <typename Q, typename Real>
inline void quantize_run(const Real* FXQ_RESTRICT x, Q* FXQ_RESTRICT q, int64_t count, const Affine<Real> a) {
  for (int64_t i = 0; i < count; ++i) q[i] = to_integer<Q>(saturate(round_to_quantized(x[i], a), a));
}

template <typename Q, Float type>
inline void quantize_run(const Short<type>* x, Q* q, int64_t count, const Affine<float> a) {
  float real[kBlock];
  for_each_block(count, [&](int64_t i, int64_t n) {
    widen(x + i, real, n);
    quantize_run(real, q + i, n, a);
  });
}

}  // namespace
}  // namespace FXQ_ISA
}  // namespace fxquant
