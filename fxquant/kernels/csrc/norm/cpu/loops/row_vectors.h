// Vectors of 16 values of a row, the last one of it partly filled: what the AVX-512 loops of norms share. No torch.
#pragma once
#if defined(__AVX512BW__)
#include <cstdint>

#include "cpu/loops/intrinsics.h"
#include "cpu/loops/requantized_bytes.h"

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

inline int32_t largest_of(__m512i x) {
  const __m256i eight = _mm256_max_epi32(_mm512_castsi512_si256(x), _mm512_maskz_extracti64x4_epi64(0xff, x, 1));
  const __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  const __m128i two = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
}

// Stores rows as bytes.
class StoredVectors {
 public:
  StoredVectors(uint8_t* y, const OutputQParams& q) : y_(y), bytes_(q) {}

  // Stores V vectors from index `at` on, of whose lanes `left` exist.
  template <int V>
  inline void store(const __m512* values, int64_t at, int64_t left) const {
    const __m512i bytes = bytes_.of_floats<V>(values);
    if (left == V * kVector) {
      RequantizedBytes::store<V, true>(bytes, y_ + at, left);
    } else {
      RequantizedBytes::store<V, false>(bytes, y_ + at, left);
    }
  }
  // Stores V vectors of a row that begins at index `at`. The last one begins at its element `last`, over the one before.
  template <int V>
  inline void store_overlapping(const __m512* values, int64_t at, int64_t last) const {
    const __m512i bytes = bytes_.of_floats<V>(values);
    RequantizedBytes::store<V - 1, true>(bytes, y_ + at, (V - 1) * kVector);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(y_ + at + last), RequantizedBytes::part<V - 1>(bytes));
  }

 private:
  uint8_t* const y_;
  const RequantizedBytes bytes_;
};

}  // namespace
}  // namespace FXQ_ISA
}  // namespace fxquant
#endif
