// The last step of an epilogue: float values are requantized to the bytes of the result, or stored as float32. No torch.
#pragma once
#include "conv/conv_shape.h"
#include "cpu/loops/loop_pragmas.h"
#include "cpu/loops/products.h"
#include "math/requantize.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

#if defined(__AVX512BW__)
// Computes as unsigned bytes: int8 is shifted by 128, and its sign bit is flipped at the end. q.low and q.high are distances
// from the zero point.
//   store()                 The upper bound is applied to float values, the lower one to bytes.
//   integers<true>()        The upper bound is applied to float values; store_steps() applies both to bytes.
//   integers<false>()       No bound is applied to float values: the caller knows that, divided by the scale, they fit int32.
class OutputStore {
 public:
  OutputStore(uint8_t* y, float* y_float, const OutputQParams& q, const FloatLimits& limits = {})
      : y_(y),
        y_float_(y_float),
        byte_offset_(q.low + static_cast<float>(q.zero_point) < 0 ? 128 : 0),
        flip_(_mm512_set1_epi8(static_cast<char>(byte_offset_))),
        zero_point_(_mm512_set1_epi16(static_cast<int16_t>(q.zero_point + byte_offset_))),
        low_byte_(_mm512_set1_epi8(static_cast<char>(static_cast<int32_t>(q.low) + q.zero_point + byte_offset_))),
        high_byte_(_mm512_set1_epi8(static_cast<char>(static_cast<int32_t>(q.high) + q.zero_point + byte_offset_))),
        inv_scale_(_mm512_set1_ps(q.inv_scale)),
        high_steps_(_mm512_set1_ps(q.high)),
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
      store_bytes<V, kWhole>(requantized<V>(values), y_ + at, left);
    }
  }

  // For callers that round by themselves: returns round(value / scale). It must lie in int32, or be clamped first.
  template <bool kClamps>
  FXQ_INLINE __m512i integers(__m512 values) const {
    const __m512 steps = _mm512_mul_ps(values, inv_scale_);
    return _mm512_cvtps_epi32(kClamps ? _mm512_min_ps(high_steps_, steps) : steps);
  }
  // Adds the zero point to such integers and stores them as bytes. Where the result has all values of uint8, they saturate,
  // and need not be clamped.
  template <int V, bool kWhole>
  FXQ_INLINE void store_steps(const __m512i* steps, bool clamps, int64_t at, int64_t left) const {
    __m512i bytes = packed<V>(steps);
    if (clamps) bytes = _mm512_xor_si512(_mm512_max_epu8(_mm512_min_epu8(bytes, high_byte_), low_byte_), flip_);
    store_bytes<V, kWhole>(unshuffled(bytes), y_ + at, left);
  }

 private:
  uint8_t* const y_;
  float* const y_float_;
  const int32_t byte_offset_;
  const __m512i flip_;
  const __m512i zero_point_;
  const __m512i low_byte_;
  const __m512i high_byte_;
  const __m512 inv_scale_;
  const __m512 high_steps_;
  const __m512 low_float_;
  const __m512 high_float_;

  // Does what requantize() of math/requantize.h does. The minimum gives NaN back. The conversion makes INT32_MIN of it, as of
  // every value below, and packing saturates that to the lowest byte.
  template <int V>
  FXQ_INLINE __m512i requantized(const __m512* values) const {
    __m512i steps[V];
    FXQ_UNROLL
    for (int v = 0; v < V; ++v) steps[v] = integers<true>(values[v]);
    return unshuffled(_mm512_xor_si512(_mm512_max_epu8(packed<V>(steps), low_byte_), flip_));
  }

  // Packs V panels to unsigned bytes, whose groups of four are not in order yet.
  template <int V>
  FXQ_INLINE __m512i packed(const __m512i* steps) const {
    const __m512i first = pair(steps[0], steps[V > 1 ? 1 : 0]);
    return _mm512_packus_epi16(first, V > 2 ? pair(steps[V > 2 ? 2 : 0], steps[V > 3 ? 3 : 0]) : first);
  }
  FXQ_INLINE __m512i pair(__m512i a, __m512i b) const {
    return _mm512_adds_epi16(_mm512_packs_epi32(a, b), zero_point_);
  }
  static FXQ_INLINE __m512i unshuffled(__m512i bytes) {
    return _mm512_permutexvar_epi32(_mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0), bytes);
  }

  template <int V, bool kWhole>
  static FXQ_INLINE void store_bytes(__m512i bytes, uint8_t* y, int64_t left) {
    if (!kWhole) {
      _mm512_mask_storeu_epi8(y, (__mmask64{1} << left) - 1, bytes);
    } else if (V == 4) {
      _mm512_storeu_si512(y, bytes);
    } else if (V == 1) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(y), _mm512_castsi512_si128(bytes));
    } else {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(y), _mm512_castsi512_si256(bytes));
      if (V == 3) _mm_storeu_si128(reinterpret_cast<__m128i*>(y + 32), _mm512_extracti32x4_epi32(bytes, 2));
    }
  }
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
