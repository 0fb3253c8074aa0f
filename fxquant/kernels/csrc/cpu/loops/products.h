// Products of bytes for one panel (16 output channels): accumulator += four bytes of the LHS * four bytes of the RHS. Exact
// on every instruction set: where a CPU has no instruction for it, bytes are widened to 16 bits. No torch.
//
//   Pixel         four unsigned bytes of the LHS, broadcast to all 16 channels; less kPixelShift each (pixel_shift.h)
//   Weights       four signed bytes of the RHS for each of 16 channels
//   Accumulators  one int32 for each of 16 channels, maybe as several partial sums, which horizontal_sum() adds
#pragma once
#include <cstdint>
#include <cstring>

#if defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#endif

#include "cpu/loops/intrinsics.h"
#include "cpu/loops/pixel_shift.h"
#include "math/modulo.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

inline int32_t four_bytes(const uint8_t* x) {
  int32_t bytes;
  std::memcpy(&bytes, x, sizeof(bytes));
  return bytes;
}

#if defined(__AVX512BW__)
// Returns a mask of the first `count` of 16 lanes.
inline __mmask16 mask_of(int64_t count) {
  return static_cast<__mmask16>(count >= 16 ? 0xffff : count > 0 ? (1 << count) - 1 : 0);
}
#endif

constexpr uint32_t kSigns = 0x80808080;  // int8 as uint8, 128 higher: the sign bit flipped

// A tile has at most kMostPanels panels: the accumulators of kRows pixels times as many fit the registers.
#if defined(__AVX512VNNI__)
constexpr int kRows = 6;
constexpr int kMostPanels = 4;

struct Accumulators {
  __m512i acc = _mm512_setzero_si512();
};
using Pixel = __m512i;
using Weights = __m512i;

inline Accumulators init_accumulators(const int32_t* at, int64_t count) {
  return {_mm512_maskz_loadu_epi32(mask_of(count), at)};
}

template <bool kSigned>
inline Pixel load_pixel(const uint8_t* x) {
  const __m512i bytes = _mm512_set1_epi32(four_bytes(x));
  return kSigned ? _mm512_xor_si512(bytes, _mm512_set1_epi32(static_cast<int32_t>(kSigns))) : bytes;
}
inline Weights load_weights(const int8_t* w) { return _mm512_loadu_si512(w); }
inline void add_products(Accumulators& to, const Pixel& x, const Weights& w) {
  to.acc = _mm512_dpbusd_epi32(to.acc, x, w);
}
inline __m512i horizontal_sum(const Accumulators& of) { return of.acc; }

#elif defined(__AVX512BW__)
constexpr int kRows = 6;
constexpr int kMostPanels = 2;

struct Accumulators {  // two partial sums for each of the channels 0 to 7, and 8 to 15
  __m512i low = _mm512_setzero_si512();
  __m512i high = _mm512_setzero_si512();
};
using Pixel = __m512i;
struct Weights {
  __m512i low;
  __m512i high;
};

inline Accumulators init_accumulators(const int32_t* at, int64_t count) {
  const __m512i all = _mm512_maskz_loadu_epi32(mask_of(count), at);
  return {_mm512_maskz_expand_epi32(0x5555, all),
          _mm512_maskz_expand_epi32(0x5555, _mm512_shuffle_i64x2(all, all, 0x0e))};
}

template <bool kSigned>
inline Pixel load_pixel(const uint8_t* x) {
  const int32_t bytes = four_bytes(x) ^ static_cast<int32_t>(kSigned ? kSigns : 0);
  return _mm512_cvtepu8_epi16(_mm256_set1_epi32(bytes));
}
inline Weights load_weights(const int8_t* w) {
  return {_mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(w))),
          _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(w + 32)))};
}
inline void add_products(Accumulators& to, const Pixel& x, const Weights& w) {
  to.low = _mm512_add_epi32(to.low, _mm512_madd_epi16(x, w.low));
  to.high = _mm512_add_epi32(to.high, _mm512_madd_epi16(x, w.high));
}
inline __m512i horizontal_sum(const Accumulators& of) {
  const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  const __m512i odd = _mm512_set_epi32(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
  return _mm512_add_epi32(_mm512_permutex2var_epi32(of.low, even, of.high),
                          _mm512_permutex2var_epi32(of.low, odd, of.high));
}

#elif defined(__AVX2__)
constexpr int kRows = 2;
constexpr int kMostPanels = 1;

struct Accumulators {  // two partial sums for each of four channels
  __m256i of[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256()};
};
using Pixel = __m256i;
struct Weights {
  __m256i of[4];
};

inline Accumulators init_accumulators(const int32_t* at, int64_t count) {
  int32_t all[16] = {};
  std::memcpy(all, at, (count < 16 ? count : 16) * sizeof(int32_t));
  Accumulators acc;
  for (int i = 0; i < 4; ++i) {
    acc.of[i] = _mm256_cvtepu32_epi64(_mm_loadu_si128(reinterpret_cast<const __m128i*>(all) + i));
  }
  return acc;
}

template <bool kSigned>
inline Pixel load_pixel(const uint8_t* x) {
  const int32_t bytes = four_bytes(x) ^ static_cast<int32_t>(kSigned ? kSigns : 0);
  return _mm256_cvtepu8_epi16(_mm_set1_epi32(bytes));
}
inline Weights load_weights(const int8_t* w) {
  const __m128i* four = reinterpret_cast<const __m128i*>(w);
  return {{_mm256_cvtepi8_epi16(_mm_loadu_si128(four)), _mm256_cvtepi8_epi16(_mm_loadu_si128(four + 1)),
           _mm256_cvtepi8_epi16(_mm_loadu_si128(four + 2)), _mm256_cvtepi8_epi16(_mm_loadu_si128(four + 3))}};
}
inline void add_products(Accumulators& to, const Pixel& x, const Weights& w) {
  for (int i = 0; i < 4; ++i) to.of[i] = _mm256_add_epi32(to.of[i], _mm256_madd_epi16(x, w.of[i]));
}
inline void horizontal_sum(const Accumulators& of, int32_t* acc) {
  for (int i = 0; i < 4; i += 2) {
    const __m256i mixed = _mm256_hadd_epi32(of.of[i], of.of[i + 1]);  // channels 0 1 4 5 2 3 6 7
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(acc + i * 4), _mm256_permute4x64_epi64(mixed, 0xd8));
  }
}

#elif defined(__ARM_FEATURE_DOTPROD)
constexpr int kRows = 4;  // with six, compilers load all pixels first, and accumulators leave the 32 registers
constexpr int kMostPanels = 1;

struct Accumulators {
  int32x4_t of[4] = {vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0)};
};
using Pixel = uint8x8_t;
struct Weights {
  int8x16_t of[4];
};

inline Accumulators init_accumulators(const int32_t* at, int64_t count) {
  int32_t all[16] = {};
  std::memcpy(all, at, (count < 16 ? count : 16) * sizeof(int32_t));
  return {{vld1q_s32(all), vld1q_s32(all + 4), vld1q_s32(all + 8), vld1q_s32(all + 12)}};
}

template <bool kSigned>
inline Pixel load_pixel(const uint8_t* x) {
  const uint32_t flips = kPixelFlip<kSigned> != 0 ? kSigns : 0;
  return vreinterpret_u8_u32(vdup_n_u32(static_cast<uint32_t>(four_bytes(x)) ^ flips));
}
inline Weights load_weights(const int8_t* w) {
  return {{vld1q_s8(w), vld1q_s8(w + 16), vld1q_s8(w + 32), vld1q_s8(w + 48)}};
}
inline void add_products(Accumulators& to, const Pixel& x, const Weights& w) {
  for (int i = 0; i < 4; ++i) {
#if defined(__ARM_FEATURE_MATMUL_INT8)
    to.of[i] = vsudotq_lane_s32(to.of[i], w.of[i], x, 0);
#else
    to.of[i] = vdotq_lane_s32(to.of[i], w.of[i], vreinterpret_s8_u8(x), 0);
#endif
  }
}
inline void horizontal_sum(const Accumulators& of, int32_t* acc) {
  for (int i = 0; i < 4; ++i) vst1q_s32(acc + 4 * i, of.of[i]);
}

#else
constexpr int kRows = 1;
constexpr int kMostPanels = 1;

struct Accumulators {
  int32_t of[16] = {};
};
struct Pixel {
  int16_t of[4];
};
struct Weights {
  int8_t of[64];
};

inline Accumulators init_accumulators(const int32_t* at, int64_t count) {
  Accumulators acc;
  std::memcpy(acc.of, at, (count < 16 ? count : 16) * sizeof(int32_t));
  return acc;
}

template <bool kSigned>
inline Pixel load_pixel(const uint8_t* x) {
  constexpr uint8_t kFlip = kSigned ? 0x80 : 0;
  const auto at = [x](int i) { return static_cast<int16_t>(x[i] ^ kFlip); };
  return {{at(0), at(1), at(2), at(3)}};
}
inline Weights load_weights(const int8_t* w) {
  Weights weights;
  std::memcpy(weights.of, w, sizeof(weights.of));
  return weights;
}
inline void add_products(Accumulators& to, const Pixel& x, const Weights& w) {
  for (int c = 0; c < 16; ++c) {
    const int8_t* four = w.of + 4 * c;
    const int32_t sum = x.of[0] * four[0] + x.of[1] * four[1] + x.of[2] * four[2] + x.of[3] * four[3];
    to.of[c] = add_modulo(to.of[c], sum);
  }
}
inline void horizontal_sum(const Accumulators& of, int32_t* acc) { std::memcpy(acc, of.of, sizeof(of.of)); }
#endif

inline void store_accumulators(const Accumulators& acc, int32_t* to) {
#if defined(__AVX512BW__)
  _mm512_storeu_si512(to, horizontal_sum(acc));
#else
  horizontal_sum(acc, to);
#endif
}

// Returns a[c] + b[c] modulo 2^32. The parts may overflow, the sum of all of them does not.
inline Accumulators accumulators_of_sum(const int32_t* a, const int32_t* b) {
#if defined(__AVX512VNNI__)
  return {_mm512_add_epi32(_mm512_loadu_si512(a), _mm512_loadu_si512(b))};
#else
  int32_t both[16];
  for (int c = 0; c < 16; ++c) {
    both[c] = add_modulo(a[c], b[c]);
  }
  return init_accumulators(both, 16);
#endif
}

// Loads `count` bytes, 1 to 4, and zeros. A loop would become a call of memcpy, and accumulators would leave the registers
// around a call.
template <bool kSigned>
inline Pixel load_pixel_tail(const uint8_t* x, int64_t count) {
  const uint8_t k_group[4] = {x[0], count > 1 ? x[1] : uint8_t{0}, count > 2 ? x[2] : uint8_t{0},
                           count > 3 ? x[3] : uint8_t{0}};
  return load_pixel<kSigned>(k_group);
}

// Returns a pixel of bytes 1, so that products are the weights.
inline Pixel pixel_of_ones() {
  const uint8_t ones[4] = {1, 1, 1, 1};
  return load_pixel<kPixelShift != 0>(ones);  // as it is
}

// Computes sums[c] + (factor + kPixelShift) * sum of the weights of channel c, modulo 2^32, of one panel. Its successive K groups
// lie `k_group_bytes` apart.
inline void add_weight_sums(const int8_t* w, int64_t k_groups, int64_t k_group_bytes, int32_t factor, int32_t* sums) {
  const Pixel one = pixel_of_ones();
  Accumulators acc;
  for (int64_t k = 0; k < k_groups; ++k) add_products(acc, one, load_weights(w + k * k_group_bytes));
  int32_t each[16];
  store_accumulators(acc, each);
  for (int c = 0; c < 16; ++c) sums[c] = add_modulo(sums[c], multiply_modulo(each[c], add_modulo(factor, kPixelShift)));
}

}  // namespace
}  // namespace FXQ_ISA
}  // namespace fxquant
