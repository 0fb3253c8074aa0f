// The last step of an epilogue: float values are requantized to the bytes of the result, or stored as float32. No torch.
#pragma once
#include "conv/conv_shape.h"
#include "cpu/loops/loop_pragmas.h"
#include "cpu/loops/products.h"
#include "cpu/loops/requantized_bytes.h"
#include "math/requantize.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

#if defined(__AVX512BW__)
//   store()                 The upper bound is applied to float values, the lower one to bytes.
//   integers<true>()        The upper bound is applied to float values; store_steps() applies both to bytes.
//   integers<false>()       No bound is applied to float values: the caller knows that, divided by the scale, they fit int32.
class OutputStore {
 public:
  OutputStore(uint8_t* y, float* y_float, const OutputQParams& q, const FloatLimits& limits = {})
      : y_(y),
        y_float_(y_float),
        bytes_(q),
        low_float_(_mm512_set1_ps(limits.low)),
        high_float_(_mm512_set1_ps(limits.high)) {}

  // Stores V panels from index `at` on, of whose channels `left` exist: all of them if kWhole.
  template <int V, bool kWhole>
  FXQ_INLINE void store(const __m512* values, const __mmask16* masks, int64_t at, int64_t left) const {
    if (y_float_ != nullptr) {
      FXQ_UNROLL
      for (int v = 0; v < V; ++v) {
        // Where one of the two is NaN, both instructions give the second one: as clamp_float() does.
        const __m512 clamped = _mm512_min_ps(high_float_, _mm512_max_ps(low_float_, values[v]));
        _mm512_mask_storeu_ps(y_float_ + at + v * kPanel, masks[v], clamped);
      }
    } else {
      RequantizedBytes::store<V, kWhole>(bytes_.of_floats<V>(values), y_ + at, left);
    }
  }

  // For callers that round by themselves: returns round(value / scale). It must lie in int32, or be clamped first.
  template <bool kClamps>
  FXQ_INLINE __m512i integers(__m512 values) const {
    return bytes_.integers<kClamps>(values);
  }
  // Adds the zero point to such integers and stores them as bytes.
  template <int V, bool kWhole>
  FXQ_INLINE void store_steps(const __m512i* steps, bool clamps, int64_t at, int64_t left) const {
    RequantizedBytes::store<V, kWhole>(bytes_.of_integers<V>(steps, clamps), y_ + at, left);
  }

 private:
  uint8_t* const y_;
  float* const y_float_;
  const RequantizedBytes bytes_;
  const __m512 low_float_;
  const __m512 high_float_;
};

// Computes the masks of the channels of V panels, of which `left` exist.
template <int V, bool kWhole>
FXQ_INLINE void masks_of(int64_t left, __mmask16* masks) {
  FXQ_UNROLL
  for (int v = 0; v < V; ++v) masks[v] = kWhole ? 0xffff : mask_of(left - v * kPanel);
}
#else
struct OutputStore {
  uint8_t* y;
  float* y_float;
  OutputQParams y_qparams;
  FloatLimits limits = {};

  // Stores `count` values from index `at` on. `count` should be a constant after inlining where it is kPanel.
  FXQ_INLINE void store(const float* values, int64_t at, int64_t count) const {
    if (y_float != nullptr) {
      for (int64_t c = 0; c < count; ++c) y_float[at + c] = clamp_float(values[c], limits);
      return;
    }
    FXQ_INDEPENDENT
    for (int64_t c = 0; c < count; ++c) y[at + c] = requantize(values[c], y_qparams);
  }
};
#endif

}  // namespace
}  // namespace FXQ_ISA
}  // namespace fxquant
