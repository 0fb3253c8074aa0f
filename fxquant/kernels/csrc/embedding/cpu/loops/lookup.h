// Rows of a table as float values. No torch.
#pragma once
#include "cpu/loops/blocks.h"
#include "cpu/loops/intrinsics.h"
#include "embedding/lookup.h"
#include "math/lookup.h"

namespace fxquant {

// The 16 numbers that a half of a byte stands for, in registers where a register can be indexed by another one.
#if defined(__AVX2__)
constexpr int64_t kNibblesAtOnce = 16;

// The halves of 8 bytes, in order.
static inline __m128i split_nibbles(const uint8_t* q) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(q));
  const __m128i mask = _mm_set1_epi8(15);
  return _mm_unpacklo_epi8(_mm_and_si128(bytes, mask), _mm_and_si128(_mm_srli_epi16(bytes, 4), mask));
}
#endif

#if defined(__AVX512F__)
static inline void look_up_nibbles(const uint8_t* q, const float* numbers, float* y) {
  constexpr __mmask16 kAll = 0xffff;  // GCC takes the unmasked forms for reads of something uninitialized
  const __m512i index = _mm512_maskz_cvtepu8_epi32(kAll, split_nibbles(q));
  _mm512_storeu_ps(y, _mm512_maskz_permutexvar_ps(kAll, index, _mm512_loadu_ps(numbers)));
}
#elif defined(__AVX2__)
static inline __m256 look_up_eight(__m128i nibbles, const float* numbers) {
  const __m256i index = _mm256_cvtepu8_epi32(nibbles);
  const __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(numbers), index);
  const __m256 high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(numbers + 8), index);
  return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(index, 28)));
}

static inline void look_up_nibbles(const uint8_t* q, const float* numbers, float* y) {
  const __m128i nibbles = split_nibbles(q);
  _mm256_storeu_ps(y, look_up_eight(nibbles, numbers));
  _mm256_storeu_ps(y + 8, look_up_eight(_mm_srli_si128(nibbles, 8), numbers));
}
#endif

template <typename Q>
static inline void dequantize_bytes(const Q* FXQ_RESTRICT q, float* FXQ_RESTRICT y, int64_t count, float scale,
                                 float zero_point) {
  for (int64_t i = 0; i < count; ++i) y[i] = dequantize_float_zero_point(q[i], scale, zero_point);
}

// Each half of a byte is one of 16 numbers, which are worked out once.
static inline void dequantize_nibbles(const uint8_t* FXQ_RESTRICT q, float* FXQ_RESTRICT y, int64_t count, float scale,
                                  float zero_point, bool is_signed) {
  float numbers[16];
  for (int32_t i = 0; i < 16; ++i) numbers[i] = dequantize_float_zero_point(nibble(i, is_signed), scale, zero_point);
  const int64_t pairs = count / 2;
  int64_t i = 0;
#if defined(__AVX2__)
  for (; 2 * i + kNibblesAtOnce <= count; i += kNibblesAtOnce / 2) look_up_nibbles(q + i, numbers, y + 2 * i);
#endif
  for (; i < pairs; ++i) {
    y[2 * i] = numbers[q[i] & 15];
    y[2 * i + 1] = numbers[q[i] >> 4];
  }
  if (count % 2) y[count - 1] = numbers[q[pairs] & 15];
}

// The columns first <= c < first + count of a row; first is even.
static inline void dequantize_row(const LookupTable& table, int64_t row, int64_t first, int64_t count, float* y) {
  const uint8_t* q = table.bytes + row * table.row_bytes;
  const int64_t qparams_row = table.per_tensor ? 0 : row;
  const float scale = table.scale[qparams_row];
  const float zero_point = table.zero_point[qparams_row];
  if (table.nibbles) return dequantize_nibbles(q + first / 2, y, count, scale, zero_point, table.is_signed);
  if (table.is_signed) {
    return dequantize_bytes(reinterpret_cast<const int8_t*>(q) + first, y, count, scale, zero_point);
  }
  dequantize_bytes(q + first, y, count, scale, zero_point);
}

}  // namespace fxquant
