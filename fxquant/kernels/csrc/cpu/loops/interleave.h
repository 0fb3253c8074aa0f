// Packing: four rows of 16 bytes become 16 K groups of four bytes. No torch.
#pragma once
#include "cpu/loops/products.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

// Packs 16 columns. Each byte is combined with `flip` by exclusive or: 0x80 turns int8 into uint8.
inline void interleave(const uint8_t* const* from, uint8_t flip, uint8_t* to) {
#if defined(__AVX2__)
  const __m128i flips = _mm_set1_epi8(static_cast<char>(flip));
  __m128i rows[4];
  for (int k = 0; k < 4; ++k) {
    rows[k] = _mm_xor_si128(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from[k])), flips);
  }
  const __m128i low01 = _mm_unpacklo_epi8(rows[0], rows[1]);
  const __m128i low23 = _mm_unpacklo_epi8(rows[2], rows[3]);
  const __m128i high01 = _mm_unpackhi_epi8(rows[0], rows[1]);
  const __m128i high23 = _mm_unpackhi_epi8(rows[2], rows[3]);
  __m128i* k_groups = reinterpret_cast<__m128i*>(to);
  _mm_storeu_si128(k_groups, _mm_unpacklo_epi16(low01, low23));
  _mm_storeu_si128(k_groups + 1, _mm_unpackhi_epi16(low01, low23));
  _mm_storeu_si128(k_groups + 2, _mm_unpacklo_epi16(high01, high23));
  _mm_storeu_si128(k_groups + 3, _mm_unpackhi_epi16(high01, high23));
#elif defined(__ARM_FEATURE_DOTPROD)
  const uint8x16_t flips = vdupq_n_u8(flip);
  const auto row = [&](int k) { return veorq_u8(vld1q_u8(from[k]), flips); };
  vst4q_u8(to, uint8x16x4_t{{row(0), row(1), row(2), row(3)}});
#else
  for (int c = 0; c < 16; ++c) {
    for (int k = 0; k < 4; ++k) to[4 * c + k] = from[k][c] ^ flip;
  }
#endif
}

}  // namespace
}  // namespace FXQ_ISA
}  // namespace fxquant
