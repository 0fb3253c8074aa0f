// requantize() of up to four vectors of 16 values, packed to bytes and stored together: what the AVX-512 loops of products and
// of norms share. No torch.
#pragma once
#if defined(__AVX512BW__)
#include <cstdint>

#include "cpu/loops/intrinsics.h"
#include "cpu/loops/loop_pragmas.h"
#include "math/requantize.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

// Computes as unsigned bytes: int8 is shifted by 128, and its sign bit is flipped at the end. q.low and q.high are distances
// from the zero point. Instructions are in their masked forms, which are the same: GCC takes the others for reads of something
// uninitialized.
class RequantizedBytes {
 public:
  explicit RequantizedBytes(const OutputQParams& q)
      : byte_offset_(q.low + static_cast<float>(q.zero_point) < 0 ? 128 : 0),
        flip_(_mm512_set1_epi8(static_cast<char>(byte_offset_))),
        zero_point_(_mm512_set1_epi16(static_cast<int16_t>(q.zero_point + byte_offset_))),
        low_byte_(_mm512_set1_epi8(static_cast<char>(static_cast<int32_t>(q.low) + q.zero_point + byte_offset_))),
        high_byte_(_mm512_set1_epi8(static_cast<char>(static_cast<int32_t>(q.high) + q.zero_point + byte_offset_))),
        inv_scale_(_mm512_set1_ps(q.inv_scale)),
        high_steps_(_mm512_set1_ps(q.high)) {}

  // Returns round(value / scale). Without the upper bound, the caller knows that it lies in int32. The minimum gives NaN back.
  // The conversion makes INT32_MIN of it, as of every value below, and packing saturates that to the lowest byte.
  template <bool kClamps>
  FXQ_INLINE __m512i integers(__m512 values) const {
    const __m512 steps = _mm512_mul_ps(values, inv_scale_);
    return _mm512_maskz_cvtps_epi32(kAll, kClamps ? _mm512_maskz_min_ps(kAll, high_steps_, steps) : steps);
  }

  // Returns the bytes of V vectors of floats, in order.
  template <int V>
  FXQ_INLINE __m512i of_floats(const __m512* values) const {
    __m512i steps[V];
    FXQ_UNROLL
    for (int v = 0; v < V; ++v) steps[v] = integers<true>(values[v]);
    return unshuffled(_mm512_xor_si512(_mm512_max_epu8(packed<V>(steps), low_byte_), flip_));
  }

  // Returns the bytes of V vectors of integers(). Where the result has all values of uint8, they saturate, and need not be clamped.
  template <int V>
  FXQ_INLINE __m512i of_integers(const __m512i* steps, bool clamps) const {
    __m512i bytes = packed<V>(steps);
    if (clamps) bytes = _mm512_xor_si512(_mm512_max_epu8(_mm512_min_epu8(bytes, high_byte_), low_byte_), flip_);
    return unshuffled(bytes);
  }

  // Stores the bytes of V vectors, or `left` of them if not kWhole.
  template <int V, bool kWhole>
  static FXQ_INLINE void store(__m512i bytes, uint8_t* y, int64_t left) {
    if (!kWhole) {
      _mm512_mask_storeu_epi8(y, (__mmask64{1} << left) - 1, bytes);
    } else if (V == 4) {
      _mm512_storeu_si512(y, bytes);
    } else if (V == 1) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(y), _mm512_castsi512_si128(bytes));
    } else {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(y), _mm512_castsi512_si256(bytes));
      if (V == 3) _mm_storeu_si128(reinterpret_cast<__m128i*>(y + 32), part<2>(bytes));
    }
  }

  // Returns those of vector number kIndex.
  template <int kIndex>
  static FXQ_INLINE __m128i part(__m512i bytes) {
    return _mm512_maskz_extracti32x4_epi32(0xf, bytes, kIndex);
  }

 private:
  static constexpr __mmask16 kAll = 0xffff;
  const int32_t byte_offset_;
  const __m512i flip_;
  const __m512i zero_point_;
  const __m512i low_byte_;
  const __m512i high_byte_;
  const __m512 inv_scale_;
  const __m512 high_steps_;

  // Packs V vectors to unsigned bytes, whose groups of four are not in order yet.
  template <int V>
  FXQ_INLINE __m512i packed(const __m512i* steps) const {
    const __m512i first = pair(steps[0], steps[V > 1 ? 1 : 0]);
    return _mm512_packus_epi16(first, V > 2 ? pair(steps[V > 2 ? 2 : 0], steps[V > 3 ? 3 : 0]) : first);
  }
  FXQ_INLINE __m512i pair(__m512i a, __m512i b) const {
    return _mm512_adds_epi16(_mm512_packs_epi32(a, b), zero_point_);
  }
  static FXQ_INLINE __m512i unshuffled(__m512i bytes) {
    const __m512i order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    return _mm512_maskz_permutexvar_epi32(kAll, order, bytes);
  }
};

}  // namespace
}  // namespace FXQ_ISA
}  // namespace fxquant
#endif
