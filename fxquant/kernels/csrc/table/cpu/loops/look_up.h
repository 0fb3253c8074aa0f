// Bytes replaced by the entries of a table. No torch.
#pragma once
#include <cstdint>

#include "cpu/loops/intrinsics.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

// Bytes that lie together, in rows that start `row_stride` bytes apart.
struct Bytes {
  int64_t rows;
  int64_t row_stride;
  int64_t count;  // of a row
};

#if defined(__AVX512BW__)
// The table in four registers, 64 answers at once. Most CPUs with AVX-512 have the byte permutation (VBMI), not all.
__attribute__((target("avx512vbmi"))) inline void look_up_vbmi(const uint8_t* x, const uint8_t* table, uint8_t* y,
                                                               const Bytes& bytes) {
  const __m512i t0 = _mm512_loadu_si512(table);
  const __m512i t1 = _mm512_loadu_si512(table + 64);
  const __m512i t2 = _mm512_loadu_si512(table + 128);
  const __m512i t3 = _mm512_loadu_si512(table + 192);
  for (int64_t r = 0; r < bytes.rows; ++r, x += bytes.row_stride, y += bytes.row_stride) {
    for (int64_t i = 0; i < bytes.count; i += 64) {
      const int64_t left = bytes.count - i;
      const __mmask64 some = left < 64 ? (__mmask64{1} << left) - 1 : ~__mmask64{0};
      const __m512i index = left < 64 ? _mm512_maskz_loadu_epi8(some, x + i) : _mm512_loadu_si512(x + i);
      const __m512i low = _mm512_permutex2var_epi8(t0, index, t1);   // by the lower 7 bits
      const __m512i high = _mm512_permutex2var_epi8(t2, index, t3);  // for bytes from 128 on
      const __m512i found = _mm512_mask_blend_epi8(_mm512_movepi8_mask(index), low, high);
      if (left < 64) {
        _mm512_mask_storeu_epi8(y + i, some, found);
      } else {
        _mm512_storeu_si512(y + i, found);
      }
    }
  }
}
#endif

// y[i] = table[x[i]]; y may be x.
inline void look_up(const uint8_t* x, const uint8_t* table, uint8_t* y, const Bytes& bytes) {
#if defined(__AVX512BW__)
  if (__builtin_cpu_supports("avx512vbmi")) return look_up_vbmi(x, table, y, bytes);
#endif
  for (int64_t r = 0; r < bytes.rows; ++r, x += bytes.row_stride, y += bytes.row_stride) {
    for (int64_t i = 0; i < bytes.count; ++i) y[i] = table[x[i]];
  }
}

}  // namespace
}  // namespace FXQ_ISA
}  // namespace fxquant
