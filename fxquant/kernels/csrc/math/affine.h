// Per-element affine quantization, written once for the CPU (C++) and for CUDA.
// No torch, no tensors, no loops: only the arithmetic, so that the two devices cannot drift apart.
//
// A quantized value stays in floating point until it is stored: inf and NaN are representable there, and are clamped before
// any cast. Clamps are ternaries, which send NaN to the lower limit and vectorise (fmaxf and fminf do neither).
// Real is float, or double for double tensors.
#pragma once
#include <cmath>
#include <cstdint>

#if defined(__CUDACC__) || defined(__HIPCC__)
#define FXQ_HOST_DEVICE __host__ __device__ __forceinline__
#else
// static: each instruction set needs its own copy, and the linker merges functions that are merely inline
#define FXQ_HOST_DEVICE static inline
#endif

namespace fxquant {

// The qparams of one channel. The limits are whole numbers that Real can represent.
template <typename Real>
struct Affine {
  Real scale;       // of one quantized unit
  Real inverse;     // 1 / scale, rounded to Real
  Real zero_point;  // in quantized units
  Real low;         // quant_min
  Real high;        // quant_max
};

// Nearest integer, ties to even.
#if defined(FXQ_X86) && !defined(__SSE4_1__) && !defined(__CUDACC__)
// Without an instruction for it, nearbyint is a call for each element. Adding 2^23 to a smaller magnitude makes the adder
// round to whole numbers; larger ones are whole already. NaN stays.
FXQ_HOST_DEVICE float round_even(float x) {
  const float magnitude = x < 0 ? -x : x;
  const float whole = (magnitude + 8388608.0f) - 8388608.0f;
  const float signed_whole = x < 0 ? -whole : whole;
  return magnitude < 8388608.0f ? signed_whole : x;
}
#else
FXQ_HOST_DEVICE float round_even(float x) { return ::nearbyintf(x); }
#endif
FXQ_HOST_DEVICE double round_even(double x) { return ::nearbyint(x); }

// Rounds to the nearest quantized value, not clamped: any number, inf or NaN.
template <typename Real>
FXQ_HOST_DEVICE Real round_to_quantized(Real x, const Affine<Real>& a) {
  return round_even(x * a.inverse) + a.zero_point;
}

template <typename Real>
FXQ_HOST_DEVICE Real saturate(Real q, const Affine<Real>& a) {
  const Real at_least_low = q > a.low ? q : a.low;
  return at_least_low < a.high ? at_least_low : a.high;
}

// Tells whether fake quantization lets the gradient through: q lies within the limits before clamping. False for NaN.
template <typename Real>
FXQ_HOST_DEVICE bool inside(Real q, const Affine<Real>& a) {
  return (q >= a.low) & (q <= a.high);
}

// Dequantizes a clamped value. The difference is exact where |q| and |zero_point| are below 2^24.
template <typename Real>
FXQ_HOST_DEVICE Real dequantize(Real q, const Affine<Real>& a) {
  return (q - a.zero_point) * a.scale;
}

// Derivative of a fake-quantized x by its scale, where q = round_to_quantized(x): the rounding error in quantized units, or,
// clipped, the distance of the limit from the zero point.
template <typename Real>
FXQ_HOST_DEVICE Real slope_of_scale(Real x, Real q, const Affine<Real>& a) {
  const Real clipped = saturate(q, a);
  const Real error = (dequantize(clipped, a) - x) * a.inverse;
  return inside(q, a) ? error : clipped - a.zero_point;
}

// Dequantizes an integer whose distance from the zero point fits an int32.
FXQ_HOST_DEVICE float dequantize(int32_t q, float scale, int32_t zero_point) {
  return static_cast<float>(q - zero_point) * scale;
}

// Dequantizes any integer: the distance may need 33 bits. It becomes a float first, then the product is rounded.
FXQ_HOST_DEVICE float dequantize_wide(int32_t q, float scale, int32_t zero_point) {
  return static_cast<float>(static_cast<int64_t>(q) - static_cast<int64_t>(zero_point)) * scale;
}

}  // namespace fxquant
