// Four rows of 16 bytes as 16 columns of four. No torch.
#pragma once
#include "products.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

// To 64 bytes; `flip` is added to each without carry.
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
  __m128i* quads = reinterpret_cast<__m128i*>(to);
  _mm_storeu_si128(quads, _mm_unpacklo_epi16(low01, low23));
  _mm_storeu_si128(quads + 1, _mm_unpackhi_epi16(low01, low23));
  _mm_storeu_si128(quads + 2, _mm_unpacklo_epi16(high01, high23));
  _mm_storeu_si128(quads + 3, _mm_unpackhi_epi16(high01, high23));
#else
  for (int c = 0; c < 16; ++c) {
    for (int k = 0; k < 4; ++k) to[4 * c + k] = from[k][c] ^ flip;
  }
#endif
}

// V times 16 bytes of each row to V times 64.
template <int V>
inline void interleave_panels(const uint8_t* const* from, uint8_t flip, uint8_t* to) {
#if defined(__AVX512BW__)
  if constexpr (V == 4) {
    const __m512i flips = _mm512_set1_epi8(static_cast<char>(flip));
    const auto row = [&](int k) { return _mm512_xor_si512(_mm512_loadu_si512(from[k]), flips); };
    const __m512i low01 = _mm512_unpacklo_epi8(row(0), row(1)), high01 = _mm512_unpackhi_epi8(row(0), row(1));
    const __m512i low23 = _mm512_unpacklo_epi8(row(2), row(3)), high23 = _mm512_unpackhi_epi8(row(2), row(3));
    // Quarters of panels 0 to 3 each, which are brought together.
    const __m512i first = _mm512_unpacklo_epi16(low01, low23), second = _mm512_unpackhi_epi16(low01, low23);
    const __m512i third = _mm512_unpacklo_epi16(high01, high23), last = _mm512_unpackhi_epi16(high01, high23);
    const __m512i lower0 = _mm512_shuffle_i32x4(first, second, 0x44), upper0 = _mm512_shuffle_i32x4(first, second, 0xee);
    const __m512i lower1 = _mm512_shuffle_i32x4(third, last, 0x44), upper1 = _mm512_shuffle_i32x4(third, last, 0xee);
    _mm512_storeu_si512(to, _mm512_shuffle_i32x4(lower0, lower1, 0x88));
    _mm512_storeu_si512(to + 64, _mm512_shuffle_i32x4(lower0, lower1, 0xdd));
    _mm512_storeu_si512(to + 128, _mm512_shuffle_i32x4(upper0, upper1, 0x88));
    _mm512_storeu_si512(to + 192, _mm512_shuffle_i32x4(upper0, upper1, 0xdd));
    return;
  }
#endif
  for (int v = 0; v < V; ++v) {
    const uint8_t* const rows[4] = {from[0] + 16 * v, from[1] + 16 * v, from[2] + 16 * v, from[3] + 16 * v};
    interleave(rows, flip, to + 64 * v);
  }
}

}  // namespace
}  // namespace FXQ_ISA
}  // namespace fxquant
