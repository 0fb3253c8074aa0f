// Vectors of 16 values of a row, the last one of it partly filled: what the AVX-512 loops of norms share. No torch.
#pragma once
#if defined(__AVX512BW__)
#include <cstdint>

#include "cpu/loops/intrinsics.h"
#include "cpu/loops/loop_pragmas.h"
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

// requantize() of up to four vectors, packed and stored together. Bytes are computed as unsigned ones, as OutputStore does:
// int8 is shifted by 128, and its sign bit is flipped at the end. A minimum gives its second operand where one is NaN; the
// conversion makes INT32_MIN of that, as of every value below, and packing saturates it to the lowest byte.
class StoredVectors {
 public:
  StoredVectors(uint8_t* y, const OutputQParams& q)
      : y_(y),
        offset_(q.low + static_cast<float>(q.zero_point) < 0 ? 128 : 0),
        flip_(_mm512_set1_epi8(static_cast<char>(offset_))),
        zero_point_(_mm512_set1_epi16(static_cast<int16_t>(q.zero_point + offset_))),
        low_byte_(_mm512_set1_epi8(static_cast<char>(static_cast<int32_t>(q.low) + q.zero_point + offset_))),
        inv_scale_(_mm512_set1_ps(q.inv_scale)),
        high_steps_(_mm512_set1_ps(q.high)) {}

  // Stores V vectors from index `at` on, of whose lanes `left` exist.
  template <int V>
  inline void store(const __m512* values, int64_t at, int64_t left) const {
    const __m512i bytes = requantized<V>(values);
    if (left == V * kVector) {
      store_whole<V>(bytes, y_ + at);
    } else {
      _mm512_mask_storeu_epi8(y_ + at, (__mmask64{1} << left) - 1, bytes);
    }
  }
  // Stores V vectors of a row that begins at index `at`. The last one begins at its element `last`, over the one before.
  template <int V>
  inline void store_overlapping(const __m512* values, int64_t at, int64_t last) const {
    const __m512i bytes = requantized<V>(values);
    store_whole<V - 1>(bytes, y_ + at);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(y_ + at + last), _mm512_maskz_extracti32x4_epi32(0xf, bytes, V - 1));
  }

 private:
  uint8_t* const y_;
  const int32_t offset_;
  const __m512i flip_;
  const __m512i zero_point_;
  const __m512i low_byte_;
  const __m512 inv_scale_;
  const __m512 high_steps_;

  template <int V>
  inline __m512i requantized(const __m512* values) const {
    __m512i steps[V];
    FXQ_UNROLL
    for (int v = 0; v < V; ++v) {
      const __m512 exact = _mm512_mul_ps(values[v], inv_scale_);
      steps[v] = _mm512_maskz_cvtps_epi32(kAll, _mm512_maskz_min_ps(kAll, high_steps_, exact));
    }
    const __m512i first = pair(steps[0], steps[V > 1 ? 1 : 0]);
    const __m512i packed =
        _mm512_packus_epi16(first, V > 2 ? pair(steps[V > 2 ? 2 : 0], steps[V > 3 ? 3 : V - 1]) : first);
    const __m512i bytes = _mm512_xor_si512(_mm512_max_epu8(packed, low_byte_), flip_);
    const __m512i order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    return _mm512_maskz_permutexvar_epi32(kAll, order, bytes);
  }
  inline __m512i pair(__m512i a, __m512i b) const {
    return _mm512_adds_epi16(_mm512_packs_epi32(a, b), zero_point_);
  }
  template <int V>
  static inline void store_whole(__m512i bytes, uint8_t* y) {
    if constexpr (V == 4) {
      _mm512_storeu_si512(y, bytes);
    } else if constexpr (V == 1) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(y), _mm512_castsi512_si128(bytes));
    } else {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(y), _mm512_castsi512_si256(bytes));
      if (V == 3) store_whole<1>(_mm512_maskz_shuffle_i64x2(0xff, bytes, bytes, 2), y + 32);
    }
  }
};

}  // namespace
}  // namespace FXQ_ISA
}  // namespace fxquant
#endif
