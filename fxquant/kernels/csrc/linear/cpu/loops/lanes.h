// Floats of neighbouring channels, and the signed values of 4 or 8 bits that become such floats. No torch.
//
//   Lanes         kLanes floats
//   load_bytes    kLanes bytes as 32-bit integers, their signs kept
//   low_values    their lower halves as floats: signed values of 4 bits
//   high_values   their upper halves
//   byte_values   the bytes as floats
#pragma once
#include <cstdint>
#include <cstring>

#include "cpu/loops/intrinsics.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

#if defined(__AVX512F__)
// GCC takes the unmasked forms of some instructions for reads of something uninitialized.
constexpr __mmask16 kAllLanes = 0xffff;
constexpr int64_t kLanes = 16;
constexpr int kTileRows = 6;  // whose sums fit the registers

using Lanes = __m512;
using Integers = __m512i;

inline Lanes no_lanes() { return _mm512_setzero_ps(); }
inline Lanes load_lanes(const float* from) { return _mm512_loadu_ps(from); }
inline Lanes all_lanes(const float* of) { return _mm512_set1_ps(*of); }
inline void store_lanes(float* to, Lanes of) { _mm512_storeu_ps(to, of); }
inline Lanes sum(Lanes a, Lanes b) { return _mm512_add_ps(a, b); }
inline Lanes difference(Lanes a, Lanes b) { return _mm512_sub_ps(a, b); }
inline Lanes product(Lanes a, Lanes b) { return _mm512_mul_ps(a, b); }

inline Integers load_bytes(const uint8_t* from) {
  return _mm512_maskz_cvtepi8_epi32(kAllLanes, _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
// One instruction looks up all of them: it reads the lowest four bits of an index.
inline Lanes values_of_halves(Integers index) {
  const Lanes numbers = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
  return _mm512_maskz_permutexvar_ps(kAllLanes, index, numbers);
}
inline Lanes low_values(Integers of) { return values_of_halves(of); }
inline Lanes high_values(Integers of) { return values_of_halves(_mm512_maskz_srli_epi32(kAllLanes, of, 4)); }
inline Lanes byte_values(Integers of) { return _mm512_maskz_cvtepi32_ps(kAllLanes, of); }

#elif defined(__AVX2__)
constexpr int64_t kLanes = 8;
constexpr int kTileRows = 3;

using Lanes = __m256;
using Integers = __m256i;

inline Lanes no_lanes() { return _mm256_setzero_ps(); }
inline Lanes load_lanes(const float* from) { return _mm256_loadu_ps(from); }
inline Lanes all_lanes(const float* of) { return _mm256_broadcast_ss(of); }
inline void store_lanes(float* to, Lanes of) { _mm256_storeu_ps(to, of); }
inline Lanes sum(Lanes a, Lanes b) { return _mm256_add_ps(a, b); }
inline Lanes difference(Lanes a, Lanes b) { return _mm256_sub_ps(a, b); }
inline Lanes product(Lanes a, Lanes b) { return _mm256_mul_ps(a, b); }

inline Integers load_bytes(const uint8_t* from) {
  return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
}
inline Lanes low_values(Integers of) {
  return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(of, 28), 28));
}
inline Lanes high_values(Integers of) { return _mm256_cvtepi32_ps(_mm256_srai_epi32(of, 4)); }
inline Lanes byte_values(Integers of) { return _mm256_cvtepi32_ps(of); }

#else
// Vectors that every compiler has for every processor, of the length that most have.
constexpr int64_t kLanes = 4;
constexpr int kTileRows = 2;

typedef float Lanes __attribute__((vector_size(16)));
typedef int32_t Integers __attribute__((vector_size(16)));

inline Lanes no_lanes() { return Lanes{0, 0, 0, 0}; }
inline Lanes load_lanes(const float* from) {
  Lanes loaded;
  std::memcpy(&loaded, from, sizeof(loaded));
  return loaded;
}
inline Lanes all_lanes(const float* of) { return Lanes{*of, *of, *of, *of}; }
inline void store_lanes(float* to, Lanes of) { std::memcpy(to, &of, sizeof(of)); }
inline Lanes sum(Lanes a, Lanes b) { return a + b; }
inline Lanes difference(Lanes a, Lanes b) { return a - b; }
inline Lanes product(Lanes a, Lanes b) { return a * b; }

inline Integers load_bytes(const uint8_t* from) {
  int8_t bytes[kLanes];
  std::memcpy(bytes, from, sizeof(bytes));
  return Integers{bytes[0], bytes[1], bytes[2], bytes[3]};
}
inline Lanes byte_values(Integers of) { return __builtin_convertvector(of, Lanes); }
inline Lanes low_values(Integers of) { return byte_values(((of & 15) ^ 8) - 8); }
inline Lanes high_values(Integers of) { return byte_values(of >> 4); }
#endif

constexpr int64_t kSlices = 16 / kLanes;  // of a panel

}  // namespace
}  // namespace FXQ_ISA
}  // namespace fxquant
