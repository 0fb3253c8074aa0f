// Registers of a depthwise convolution, and what is done with them. No torch.
//
// A lane is 16 bytes of a register: one panel (16 channels) of one pixel. The lanes of a register are several panels of a
// pixel, or the same panels of successive pixels.
//
//   ByteLanes    A byte for each channel of each lane; or the four bytes of a K group for a quarter of each lane's channels:
//                quarter k has channels 4k to 4k + 3.
//   SumLanes     int32 for a quarter of each lane's channels
//   FloatLanes   float32 for a quarter of each lane's channels
//
// Where a CPU has no instruction that multiplies and adds four bytes exactly, a quarter has two parts of 16-bit values: even
// and odd bytes of its K groups.
#pragma once
#include <cstdint>
#include <cstring>

#include "conv/conv_shape.h"
#include "conv/cpu/loops/depthwise_sizes.h"
#include "conv/cpu/loops/depthwise_registers_neon.h"
#include "conv/cpu/loops/depthwise_registers_portable.h"
#include "cpu/loops/intrinsics.h"
#include "cpu/loops/loop_pragmas.h"
#include "cpu/loops/pixel_shift.h"
#include "math/requantize.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

#if defined(__AVX512BW__)
constexpr int kLanes = 4;
constexpr int kSteps = 4;  // registers of pixels of a tile, whose accumulators fit the registers
using ByteLanes = __m512i;
using SumLanes = __m512i;
using FloatLanes = __m512;

FXQ_INLINE ByteLanes load_bytes(const void* from) { return _mm512_loadu_si512(from); }
FXQ_INLINE void store_bytes(void* to, ByteLanes x) { _mm512_storeu_si512(to, x); }
FXQ_INLINE FloatLanes load_values(const float* from) { return _mm512_loadu_ps(from); }
FXQ_INLINE void store_values(float* to, FloatLanes x) { _mm512_storeu_ps(to, x); }

FXQ_INLINE ByteLanes gather_lanes(const uint8_t* const* from, int64_t at) {
  const auto lane = [&](int i) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from[i] + at)); };
  const __m512i two = _mm512_inserti32x4(_mm512_castsi128_si512(lane(0)), lane(1), 1);
  return _mm512_inserti32x4(_mm512_inserti32x4(two, lane(2), 2), lane(3), 3);
}
// Loads kTogether lanes from each of kLanes / kTogether places, which lie `step` bytes apart.
template <int kTogether>
FXQ_INLINE ByteLanes load_lanes(const uint8_t* from, int64_t step) {
  if constexpr (kTogether == 4) return load_bytes(from);
  if constexpr (kTogether == 2) {
    const auto half = [&](int64_t i) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i * step)); };
    return _mm512_inserti64x4(_mm512_castsi256_si512(half(0)), half(1), 1);
  }
  const uint8_t* const lanes[kLanes] = {from, from + step, from + 2 * step, from + 3 * step};
  return gather_lanes(lanes, 0);
}

FXQ_INLINE ByteLanes flip_bytes(ByteLanes x, uint8_t flip) {
  return _mm512_xor_si512(x, _mm512_set1_epi8(static_cast<char>(flip)));
}
FXQ_INLINE void interleave_rows(const ByteLanes* rows, ByteLanes* quarters) {
  const ByteLanes low01 = _mm512_unpacklo_epi8(rows[0], rows[1]), high01 = _mm512_unpackhi_epi8(rows[0], rows[1]);
  const ByteLanes low23 = _mm512_unpacklo_epi8(rows[2], rows[3]), high23 = _mm512_unpackhi_epi8(rows[2], rows[3]);
  quarters[0] = _mm512_unpacklo_epi16(low01, low23);
  quarters[1] = _mm512_unpackhi_epi16(low01, low23);
  quarters[2] = _mm512_unpacklo_epi16(high01, high23);
  quarters[3] = _mm512_unpackhi_epi16(high01, high23);
}
// Moves the bytes of K groups up by `count`, and those of the K groups before into their place.
FXQ_INLINE ByteLanes shift_k_groups(ByteLanes x, ByteLanes before, int count) {
  return _mm512_or_si512(_mm512_sll_epi32(x, _mm_cvtsi32_si128(8 * count)),
                         _mm512_srl_epi32(before, _mm_cvtsi32_si128(32 - 8 * count)));
}

#if defined(__AVX512VNNI__)
constexpr int kParts = 1;
FXQ_INLINE void store_quarter(uint8_t* to, int64_t, ByteLanes x) { store_bytes(to, x); }
FXQ_INLINE void store_weights(uint8_t* to, ByteLanes w) { store_bytes(to, w); }
FXQ_INLINE SumLanes add_products(SumLanes to, ByteLanes x, ByteLanes w) { return _mm512_dpbusd_epi32(to, x, w); }
#else
constexpr int kParts = 2;
FXQ_INLINE void store_quarter(uint8_t* to, int64_t part, ByteLanes x) {
  store_bytes(to, _mm512_and_si512(x, _mm512_set1_epi16(0xff)));
  store_bytes(to + part, _mm512_srli_epi16(x, 8));
}
FXQ_INLINE void store_weights(uint8_t* to, ByteLanes w) {
  store_bytes(to, _mm512_srai_epi16(_mm512_slli_epi16(w, 8), 8));
  store_bytes(to + sizeof(ByteLanes), _mm512_srai_epi16(w, 8));
}
FXQ_INLINE SumLanes add_products(SumLanes to, ByteLanes x, ByteLanes w) {
  return _mm512_add_epi32(to, _mm512_madd_epi16(x, w));
}
#endif

FXQ_INLINE FloatLanes values_of(SumLanes x) { return _mm512_cvtepi32_ps(x); }
FXQ_INLINE FloatLanes multiply(FloatLanes a, FloatLanes b) { return _mm512_mul_ps(a, b); }
FXQ_INLINE FloatLanes add(FloatLanes a, FloatLanes b) { return _mm512_add_ps(a, b); }
FXQ_INLINE FloatLanes all_values(float x) { return _mm512_set1_ps(x); }

// Turns bytes of a residual into values that are relative to its zero point.
FXQ_INLINE void widen(ByteLanes x, int32_t zero_point, FloatLanes* values) {
  const __m512i zero = _mm512_setzero_si512(), zero_points = _mm512_set1_epi32(zero_point);
  const __m512i low = _mm512_unpacklo_epi8(x, zero), high = _mm512_unpackhi_epi8(x, zero);
  values[0] = _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_unpacklo_epi16(low, zero), zero_points));
  values[1] = _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_unpackhi_epi16(low, zero), zero_points));
  values[2] = _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_unpacklo_epi16(high, zero), zero_points));
  values[3] = _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_unpackhi_epi16(high, zero), zero_points));
}

// Brings the quarters of each lane together: lane after lane of 16 floats.
FXQ_INLINE void order_lanes(const FloatLanes* quarters, FloatLanes* lanes) {
  const __m512 low01 = _mm512_shuffle_f32x4(quarters[0], quarters[1], 0x44);
  const __m512 high01 = _mm512_shuffle_f32x4(quarters[0], quarters[1], 0xee);
  const __m512 low23 = _mm512_shuffle_f32x4(quarters[2], quarters[3], 0x44);
  const __m512 high23 = _mm512_shuffle_f32x4(quarters[2], quarters[3], 0xee);
  lanes[0] = _mm512_shuffle_f32x4(low01, low23, 0x88);
  lanes[1] = _mm512_shuffle_f32x4(low01, low23, 0xdd);
  lanes[2] = _mm512_shuffle_f32x4(high01, high23, 0x88);
  lanes[3] = _mm512_shuffle_f32x4(high01, high23, 0xdd);
}

// Does what requantize() of math/requantize.h does. The minimum gives its second operand for NaN, which becomes the smallest
// int32, as what lies below all of them does. Saturation takes that to the lowest byte. int8 is computed as uint8.
class Requantize {
 public:
  explicit Requantize(const OutputQParams& q)
      : offset_(q.low + static_cast<float>(q.zero_point) < 0 ? 128 : 0),
        flip_(_mm512_set1_epi8(static_cast<char>(offset_))),
        zero_point_(_mm512_set1_epi16(static_cast<int16_t>(q.zero_point + offset_))),
        low_(_mm512_set1_epi8(static_cast<char>(static_cast<int32_t>(q.low) + q.zero_point + offset_))),
        highest_(_mm512_set1_epi8(static_cast<char>(static_cast<int32_t>(q.high) + q.zero_point + offset_))),
        inv_scale_(_mm512_set1_ps(q.inv_scale)),
        high_(_mm512_set1_ps(q.high)) {}

  template <ClampAt kClampAt>
  FXQ_INLINE ByteLanes bytes(const FloatLanes* values) const {
    const __m512i low = pack_steps(steps<kClampAt>(values[0]), steps<kClampAt>(values[1]));
    return pack_pairs<kClampAt>(low, pack_steps(steps<kClampAt>(values[2]), steps<kClampAt>(values[3])));
  }

  // The steps of bytes(), for who computes quarters one by one: int32, then int16, then bytes.
  template <ClampAt kClampAt>
  FXQ_INLINE __m512i steps(__m512 values) const {
    const __m512 steps = _mm512_mul_ps(values, inv_scale_);
    constexpr bool kClamps = kClampAt == kClampValues || kClampAt == kAddResidual;
    return _mm512_cvtps_epi32(kClamps ? _mm512_min_ps(high_, steps) : steps);
  }
  FXQ_INLINE __m512i pack_steps(__m512i a, __m512i b) const {
    return _mm512_adds_epi16(_mm512_packs_epi32(a, b), zero_point_);
  }
  template <ClampAt kClampAt>
  FXQ_INLINE __m512i pack_pairs(__m512i a, __m512i b) const {
    const __m512i bytes = _mm512_packus_epi16(a, b);
    if constexpr (kClampAt == kSaturate) return bytes;
    const __m512i below = kClampAt == kClampBytes ? _mm512_min_epu8(bytes, highest_) : bytes;
    return _mm512_xor_si512(_mm512_max_epu8(below, low_), flip_);
  }

 private:
  const int32_t offset_;
  const __m512i flip_, zero_point_, low_, highest_;
  const __m512 inv_scale_, high_;
};

#elif defined(__AVX2__)
constexpr int kLanes = 2;
constexpr int kSteps = 3;
using ByteLanes = __m256i;
using SumLanes = __m256i;
using FloatLanes = __m256;

FXQ_INLINE ByteLanes load_bytes(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
FXQ_INLINE void store_bytes(void* to, ByteLanes x) { _mm256_storeu_si256(static_cast<__m256i*>(to), x); }
FXQ_INLINE FloatLanes load_values(const float* from) { return _mm256_loadu_ps(from); }
FXQ_INLINE void store_values(float* to, FloatLanes x) { _mm256_storeu_ps(to, x); }

FXQ_INLINE ByteLanes gather_lanes(const uint8_t* const* from, int64_t at) {
  const auto lane = [&](int i) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from[i] + at)); };
  return _mm256_inserti128_si256(_mm256_castsi128_si256(lane(0)), lane(1), 1);
}
template <int kTogether>
FXQ_INLINE ByteLanes load_lanes(const uint8_t* from, int64_t step) {
  if constexpr (kTogether == 2) return load_bytes(from);
  const uint8_t* const lanes[kLanes] = {from, from + step};
  return gather_lanes(lanes, 0);
}

FXQ_INLINE ByteLanes flip_bytes(ByteLanes x, uint8_t flip) {
  return _mm256_xor_si256(x, _mm256_set1_epi8(static_cast<char>(flip)));
}
FXQ_INLINE void interleave_rows(const ByteLanes* rows, ByteLanes* quarters) {
  const ByteLanes low01 = _mm256_unpacklo_epi8(rows[0], rows[1]), high01 = _mm256_unpackhi_epi8(rows[0], rows[1]);
  const ByteLanes low23 = _mm256_unpacklo_epi8(rows[2], rows[3]), high23 = _mm256_unpackhi_epi8(rows[2], rows[3]);
  quarters[0] = _mm256_unpacklo_epi16(low01, low23);
  quarters[1] = _mm256_unpackhi_epi16(low01, low23);
  quarters[2] = _mm256_unpacklo_epi16(high01, high23);
  quarters[3] = _mm256_unpackhi_epi16(high01, high23);
}
FXQ_INLINE ByteLanes shift_k_groups(ByteLanes x, ByteLanes before, int count) {
  return _mm256_or_si256(_mm256_sll_epi32(x, _mm_cvtsi32_si128(8 * count)),
                         _mm256_srl_epi32(before, _mm_cvtsi32_si128(32 - 8 * count)));
}

constexpr int kParts = 2;
FXQ_INLINE void store_quarter(uint8_t* to, int64_t part, ByteLanes x) {
  store_bytes(to, _mm256_and_si256(x, _mm256_set1_epi16(0xff)));
  store_bytes(to + part, _mm256_srli_epi16(x, 8));
}
FXQ_INLINE void store_weights(uint8_t* to, ByteLanes w) {
  store_bytes(to, _mm256_srai_epi16(_mm256_slli_epi16(w, 8), 8));
  store_bytes(to + sizeof(ByteLanes), _mm256_srai_epi16(w, 8));
}
FXQ_INLINE SumLanes add_products(SumLanes to, ByteLanes x, ByteLanes w) {
  return _mm256_add_epi32(to, _mm256_madd_epi16(x, w));
}

FXQ_INLINE FloatLanes values_of(SumLanes x) { return _mm256_cvtepi32_ps(x); }
FXQ_INLINE FloatLanes multiply(FloatLanes a, FloatLanes b) { return _mm256_mul_ps(a, b); }
FXQ_INLINE FloatLanes add(FloatLanes a, FloatLanes b) { return _mm256_add_ps(a, b); }
FXQ_INLINE FloatLanes all_values(float x) { return _mm256_set1_ps(x); }

FXQ_INLINE void widen(ByteLanes x, int32_t zero_point, FloatLanes* values) {
  const __m256i zero = _mm256_setzero_si256(), zero_points = _mm256_set1_epi32(zero_point);
  const __m256i low = _mm256_unpacklo_epi8(x, zero), high = _mm256_unpackhi_epi8(x, zero);
  values[0] = _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_unpacklo_epi16(low, zero), zero_points));
  values[1] = _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_unpackhi_epi16(low, zero), zero_points));
  values[2] = _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_unpacklo_epi16(high, zero), zero_points));
  values[3] = _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_unpackhi_epi16(high, zero), zero_points));
}

FXQ_INLINE void order_lanes(const FloatLanes* quarters, FloatLanes* lanes) {
  lanes[0] = _mm256_permute2f128_ps(quarters[0], quarters[1], 0x20);
  lanes[1] = _mm256_permute2f128_ps(quarters[2], quarters[3], 0x20);
  lanes[2] = _mm256_permute2f128_ps(quarters[0], quarters[1], 0x31);
  lanes[3] = _mm256_permute2f128_ps(quarters[2], quarters[3], 0x31);
}

class Requantize {
 public:
  explicit Requantize(const OutputQParams& q)
      : offset_(q.low + static_cast<float>(q.zero_point) < 0 ? 128 : 0),
        flip_(_mm256_set1_epi8(static_cast<char>(offset_))),
        zero_point_(_mm256_set1_epi16(static_cast<int16_t>(q.zero_point + offset_))),
        low_(_mm256_set1_epi8(static_cast<char>(static_cast<int32_t>(q.low) + q.zero_point + offset_))),
        highest_(_mm256_set1_epi8(static_cast<char>(static_cast<int32_t>(q.high) + q.zero_point + offset_))),
        inv_scale_(_mm256_set1_ps(q.inv_scale)),
        high_(_mm256_set1_ps(q.high)) {}

  template <ClampAt kClampAt>
  FXQ_INLINE ByteLanes bytes(const FloatLanes* values) const {
    const __m256i low = pack_steps(steps<kClampAt>(values[0]), steps<kClampAt>(values[1]));
    return pack_pairs<kClampAt>(low, pack_steps(steps<kClampAt>(values[2]), steps<kClampAt>(values[3])));
  }

  // The steps of bytes(), for who computes quarters one by one: int32, then int16, then bytes.
  template <ClampAt kClampAt>
  FXQ_INLINE __m256i steps(__m256 values) const {
    const __m256 steps = _mm256_mul_ps(values, inv_scale_);
    constexpr bool kClamps = kClampAt == kClampValues || kClampAt == kAddResidual;
    return _mm256_cvtps_epi32(kClamps ? _mm256_min_ps(high_, steps) : steps);
  }
  FXQ_INLINE __m256i pack_steps(__m256i a, __m256i b) const {
    return _mm256_adds_epi16(_mm256_packs_epi32(a, b), zero_point_);
  }
  template <ClampAt kClampAt>
  FXQ_INLINE __m256i pack_pairs(__m256i a, __m256i b) const {
    const __m256i bytes = _mm256_packus_epi16(a, b);
    if constexpr (kClampAt == kSaturate) return bytes;
    const __m256i below = kClampAt == kClampBytes ? _mm256_min_epu8(bytes, highest_) : bytes;
    return _mm256_xor_si256(_mm256_max_epu8(below, low_), flip_);
  }

 private:
  const int32_t offset_;
  const __m256i flip_, zero_point_, low_, highest_;
  const __m256 inv_scale_, high_;
};

#endif

// Interleaves four rows and stores the quarters, whose parts lie `plane` bytes apart.
FXQ_INLINE void store_column(const ByteLanes* rows, uint8_t* to, int64_t plane) {
  ByteLanes quarters[kQuarters];
  interleave_rows(rows, quarters);
  FXQ_UNROLL
  for (int k = 0; k < kQuarters; ++k) store_quarter(to + k * kParts * plane, plane, quarters[k]);
}

// Copies a few bytes: a call of memcpy would take longer.
FXQ_INLINE void copy_bytes(uint8_t* to, const uint8_t* from, int64_t count) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) std::memcpy(to + i, from + i, 16);
  if (count & 8) {
    std::memcpy(to + i, from + i, 8);
    i += 8;
  }
  if (count & 4) {
    std::memcpy(to + i, from + i, 4);
    i += 4;
  }
  for (; i < count; ++i) to[i] = from[i];
}

FXQ_INLINE SumLanes load_sums(const int32_t* from) {
  SumLanes sums;
  std::memcpy(&sums, from, sizeof(sums));
  return sums;
}

}  // namespace
}  // namespace FXQ_ISA
}  // namespace fxquant
