// Vectors of 16 values of a row, the last one of it partly filled: what the AVX-512 loops of norms share. No torch.
#pragma once
#if defined(__AVX512BW__)
#include <cstdint>

#include "cpu/loops/intrinsics.h"
#include "math/requantize.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

constexpr int64_t kVector = 16;
// GCC takes the unmasked forms of some instructions for reads of something uninitialized.
constexpr __mmask16 kAll = 0xffff;

// Calls body(i, lanes) for the vectors of a row of `count` values. Only the last one may be partly filled: masked stores take
// their time, and body tells a full vector by its type.
struct AllLanes {};
using SomeLanes = __mmask16;

template <typename Body>
inline void for_each_vector(int64_t count, const Body& body) {
  int64_t i = 0;
  for (; i + kVector <= count; i += kVector) body(i, AllLanes());
  if (i < count) body(i, static_cast<SomeLanes>((1 << (count - i)) - 1));
}

// Lanes that are not loaded are zero.
inline __m512 load_floats(const float* x, AllLanes) { return _mm512_loadu_ps(x); }
inline __m512 load_floats(const float* x, SomeLanes lanes) { return _mm512_maskz_loadu_ps(lanes, x); }
inline __m512i load_integers(const void* x, AllLanes) { return _mm512_loadu_si512(x); }
inline __m512i load_integers(const void* x, SomeLanes lanes) { return _mm512_maskz_loadu_epi32(lanes, x); }
inline void store_integers(void* to, AllLanes, __m512i x) { _mm512_storeu_si512(to, x); }
inline void store_integers(void* to, SomeLanes lanes, __m512i x) { _mm512_mask_storeu_epi32(to, lanes, x); }

inline __m128i load_bytes(const void* q, AllLanes) { return _mm_loadu_si128(static_cast<const __m128i*>(q)); }
inline __m128i load_bytes(const void* q, SomeLanes lanes) { return _mm_maskz_loadu_epi8(lanes, q); }
template <typename Lanes>
inline __m512i load_quantized(const uint8_t* q, Lanes lanes) {
  return _mm512_maskz_cvtepu8_epi32(kAll, load_bytes(q, lanes));
}
template <typename Lanes>
inline __m512i load_quantized(const int8_t* q, Lanes lanes) {
  return _mm512_maskz_cvtepi8_epi32(kAll, load_bytes(q, lanes));
}
inline void store_bytes(uint8_t* to, AllLanes, __m128i q) { _mm_storeu_si128(reinterpret_cast<__m128i*>(to), q); }
inline void store_bytes(uint8_t* to, SomeLanes lanes, __m128i q) { _mm_mask_storeu_epi8(to, lanes, q); }

// Half of a vector and the other one, as 64-bit numbers, added.
inline __m512i halves_added(__m512i x) {
  const __m256i low = _mm512_castsi512_si256(x), high = _mm512_maskz_extracti64x4_epi64(0xff, x, 1);
  return _mm512_add_epi64(_mm512_maskz_cvtepi32_epi64(0xff, low), _mm512_maskz_cvtepi32_epi64(0xff, high));
}

inline int64_t sum_of_lanes(__m512i x) {
  const __m256i four = _mm256_add_epi64(_mm512_castsi512_si256(x), _mm512_maskz_extracti64x4_epi64(0xff, x, 1));
  const __m128i two = _mm_add_epi64(_mm256_castsi256_si128(four), _mm256_extracti128_si256(four, 1));
  return _mm_cvtsi128_si64(_mm_add_epi64(two, _mm_unpackhi_epi64(two, two)));
}

// `pick` is _mm_max_epi32, say.
template <typename Pick, typename PickFour>
inline int32_t reduced(__m512i x, PickFour pick_eight, Pick pick) {
  const __m256i eight = pick_eight(_mm512_castsi512_si256(x), _mm512_maskz_extracti64x4_epi64(0xff, x, 1));
  const __m128i four = pick(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  const __m128i two = pick(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(pick(two, _mm_shuffle_epi32(two, 0xb1)));
}

inline int32_t largest_of(__m512i x) {
  return reduced(x, [](__m256i a, __m256i b) { return _mm256_max_epi32(a, b); },
                 [](__m128i a, __m128i b) { return _mm_max_epi32(a, b); });
}
inline int32_t smallest_of(__m512i x) {
  return reduced(x, [](__m256i a, __m256i b) { return _mm256_min_epi32(a, b); },
                 [](__m128i a, __m128i b) { return _mm_min_epi32(a, b); });
}

// requantize() of 16 values, stored. A maximum or minimum gives its second operand where the first one is NaN.
struct StoredVectors {
  __m512 inv_scale, low, high, shift;
  __m512i zero_point;

  explicit StoredVectors(const OutputQParams& y)
      : inv_scale(_mm512_set1_ps(y.inv_scale)),
        low(_mm512_set1_ps(y.low)),
        high(_mm512_set1_ps(y.high)),
        shift(_mm512_set1_ps(kRoundingShift)),
        zero_point(_mm512_set1_epi32(y.zero_point)) {}

  template <typename Lanes>
  void store(uint8_t* y, Lanes lanes, __m512 real) const {
    __m512 steps = _mm512_mul_ps(real, inv_scale);
    steps = _mm512_maskz_min_ps(kAll, _mm512_maskz_max_ps(kAll, steps, low), high);
    const __m512i q = _mm512_add_epi32(_mm512_castps_si512(_mm512_add_ps(steps, shift)), zero_point);
    store_bytes(y, lanes, _mm512_maskz_cvtepi32_epi8(kAll, q));
  }
};

}  // namespace
}  // namespace FXQ_ISA
}  // namespace fxquant
#endif
