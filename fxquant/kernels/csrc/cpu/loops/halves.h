// float16 blocks by the instructions that x86 has for it (F16C), to the same bits as math/half.h. No torch.
#pragma once
#if defined(__F16C__)
#include <cstdint>

#include "cpu/loops/intrinsics.h"
#include "math/half.h"

namespace fxquant {

// The instruction keeps what a NaN holds, math/half.h its sign only; so a NaN is first brought to the one of its sign.
#if defined(__AVX512F__) && defined(__AVX512DQ__)
constexpr int64_t kHalves = 16;  // in a vector

static inline void widen_vector(const Half* x, float* y) {
  _mm512_storeu_ps(y, _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x))));
}

static inline void narrow_vector(const float* x, Half* y) {
  const __m512 value = _mm512_loadu_ps(x);
  const __m512 sign = _mm512_and_ps(value, _mm512_set1_ps(-0.0f));
  const __m512 nan = _mm512_or_ps(sign, _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000)));
  const __m512 real = _mm512_mask_mov_ps(value, _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q), nan);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(y), _mm512_cvtps_ph(real, _MM_FROUND_TO_NEAREST_INT));
}
#else
constexpr int64_t kHalves = 8;

static inline void widen_vector(const Half* x, float* y) {
  _mm256_storeu_ps(y, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x))));
}

static inline void narrow_vector(const float* x, Half* y) {
  const __m256 value = _mm256_loadu_ps(x);
  const __m256 sign = _mm256_and_ps(value, _mm256_set1_ps(-0.0f));
  const __m256 nan = _mm256_or_ps(sign, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000)));
  const __m256 real = _mm256_blendv_ps(value, nan, _mm256_cmp_ps(value, value, _CMP_UNORD_Q));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(y), _mm256_cvtps_ph(real, _MM_FROUND_TO_NEAREST_INT));
}
#endif

// Whole vectors; the last one may overlap the one before.
static inline void widen(const Half* x, float* y, int64_t count) {
  if (count < kHalves) {
    for (int64_t i = 0; i < count; ++i) y[i] = to_float(x[i]);
    return;
  }
  for (int64_t i = 0; i + kHalves <= count; i += kHalves) widen_vector(x + i, y + i);
  if (count % kHalves != 0) widen_vector(x + count - kHalves, y + count - kHalves);
}

static inline void narrow(const float* x, Half* y, int64_t count) {
  if (count < kHalves) {
    for (int64_t i = 0; i < count; ++i) from_float(x[i], y[i]);
    return;
  }
  for (int64_t i = 0; i + kHalves <= count; i += kHalves) narrow_vector(x + i, y + i);
  if (count % kHalves != 0) narrow_vector(x + count - kHalves, y + count - kHalves);
}

}  // namespace fxquant
#endif
