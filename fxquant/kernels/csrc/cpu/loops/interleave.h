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
#else
  for (int c = 0; c < 16; ++c) {
    for (int k = 0; k < 4; ++k) to[4 * c + k] = from[k][c] ^ flip;
  }
#endif
}

#if defined(__AVX512BW__)
inline void interleave_four(const uint8_t* const* from, __m512i flips, uint8_t* to) {
  const auto row = [&](int k) { return _mm512_xor_si512(_mm512_loadu_si512(from[k]), flips); };
  const __m512i low01 = _mm512_unpacklo_epi8(row(0), row(1)), high01 = _mm512_unpackhi_epi8(row(0), row(1));
  const __m512i low23 = _mm512_unpacklo_epi8(row(2), row(3)), high23 = _mm512_unpackhi_epi8(row(2), row(3));
  // Each register holds a quarter of all four panels. Bring the quarters of a panel together.
  const __m512i first = _mm512_unpacklo_epi16(low01, low23), second = _mm512_unpackhi_epi16(low01, low23);
  const __m512i third = _mm512_unpacklo_epi16(high01, high23), last = _mm512_unpackhi_epi16(high01, high23);
  const __m512i lower0 = _mm512_shuffle_i32x4(first, second, 0x44), upper0 = _mm512_shuffle_i32x4(first, second, 0xee);
  const __m512i lower1 = _mm512_shuffle_i32x4(third, last, 0x44), upper1 = _mm512_shuffle_i32x4(third, last, 0xee);
  _mm512_storeu_si512(to, _mm512_shuffle_i32x4(lower0, lower1, 0x88));
  _mm512_storeu_si512(to + 64, _mm512_shuffle_i32x4(lower0, lower1, 0xdd));
  _mm512_storeu_si512(to + 128, _mm512_shuffle_i32x4(upper0, upper1, 0x88));
  _mm512_storeu_si512(to + 192, _mm512_shuffle_i32x4(upper0, upper1, 0xdd));
}

inline __m512i both(__m256i low, __m256i high) { return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1); }

inline void interleave_two(const uint8_t* const* from, __m256i flips, uint8_t* to) {
  const auto row = [&](int k) {
    return _mm256_xor_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from[k])), flips);
  };
  const __m256i low01 = _mm256_unpacklo_epi8(row(0), row(1)), high01 = _mm256_unpackhi_epi8(row(0), row(1));
  const __m256i low23 = _mm256_unpacklo_epi8(row(2), row(3)), high23 = _mm256_unpackhi_epi8(row(2), row(3));
  const __m512i lower = both(_mm256_unpacklo_epi16(low01, low23), _mm256_unpackhi_epi16(low01, low23));
  const __m512i upper = both(_mm256_unpacklo_epi16(high01, high23), _mm256_unpackhi_epi16(high01, high23));
  _mm512_storeu_si512(to, _mm512_shuffle_i32x4(lower, upper, 0x88));
  _mm512_storeu_si512(to + 64, _mm512_shuffle_i32x4(lower, upper, 0xdd));
}

// Packs one panel by one store, since one load is going to read it.
inline void interleave_one(const uint8_t* const* from, __m128i flips, uint8_t* to) {
  const auto row = [&](int k) {
    return _mm_xor_si128(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from[k])), flips);
  };
  const __m128i low01 = _mm_unpacklo_epi8(row(0), row(1)), high01 = _mm_unpackhi_epi8(row(0), row(1));
  const __m128i low23 = _mm_unpacklo_epi8(row(2), row(3)), high23 = _mm_unpackhi_epi8(row(2), row(3));
  const __m256i lower = _mm256_set_m128i(_mm_unpackhi_epi16(low01, low23), _mm_unpacklo_epi16(low01, low23));
  const __m256i upper = _mm256_set_m128i(_mm_unpackhi_epi16(high01, high23), _mm_unpacklo_epi16(high01, high23));
  _mm512_storeu_si512(to, both(lower, upper));
}
#endif

// Packs V panels.
template <int V>
inline void interleave_panels(const uint8_t* const* from, uint8_t flip, uint8_t* to) {
#if defined(__AVX512BW__)
  const __m512i flips = _mm512_set1_epi8(static_cast<char>(flip));
  if constexpr (V == 4) interleave_four(from, flips, to);
  if constexpr (V == 2 || V == 3) interleave_two(from, _mm512_castsi512_si256(flips), to);
  if constexpr (V == 1 || V == 3) {
    constexpr int kDone = V - 1;
    const uint8_t* const rows[4] = {from[0] + 16 * kDone, from[1] + 16 * kDone, from[2] + 16 * kDone,
                                    from[3] + 16 * kDone};
    interleave_one(rows, _mm512_castsi512_si128(flips), to + 64 * kDone);
  }
#else
  for (int v = 0; v < V; ++v) {
    const uint8_t* const rows[4] = {from[0] + 16 * v, from[1] + 16 * v, from[2] + 16 * v, from[3] + 16 * v};
    interleave(rows, flip, to + 64 * v);
  }
#endif
}

}  // namespace
}  // namespace FXQ_ISA
}  // namespace fxquant
