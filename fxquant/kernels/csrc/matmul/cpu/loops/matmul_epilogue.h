// From the sums of a product of two activations to bytes of the result, or to real numbers. No torch.
#pragma once
#include "cpu/loops/products.h"
#include "cpu/loops/vector.h"
#include "matmul/cpu/loops/matmul.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

inline uint32_t sum_of(const uint8_t* row, int64_t count) {
#if defined(__AVX512BW__)
  __m512i acc = _mm512_setzero_si512();
  for (int64_t k = 0; k < count; k += 64) {
    const __mmask64 mask = count - k >= 64 ? ~__mmask64{0} : (__mmask64{1} << (count - k)) - 1;
    acc = _mm512_add_epi64(acc, _mm512_sad_epu8(_mm512_maskz_loadu_epi8(mask, row + k), _mm512_setzero_si512()));
  }
  return static_cast<uint32_t>(_mm512_reduce_add_epi64(acc));
#else
  uint32_t sum = 0;
  for (int64_t k = 0; k < count; ++k) sum += row[k];
  return sum;
#endif
}

#if defined(__AVX512BW__)
// From the sums of 16 columns to the result.
struct Epilogue {
  const MatmulArgs& a;
  const __m512 scale = _mm512_set1_ps(a.scale);
  const __m512 inv_scale = _mm512_set1_ps(a.y_qparams.inv_scale);
  const __m512 low = _mm512_set1_ps(a.y_qparams.low);
  const __m512 high = _mm512_set1_ps(a.y_qparams.high);
  const __m512 shift = _mm512_set1_ps(kRoundingShift);
  const __m512i zero_point = _mm512_set1_epi32(a.y_qparams.zero_point);

  explicit Epilogue(const MatmulArgs& args) : a(args) {}

  // What requantize() of math/requantize.h does; max and min give their second operand for NaN, as its clamps do.
  FXQ_INLINE void store(const Accumulators& acc, int32_t row, int64_t at, int64_t left) const {
    const __mmask16 mask = static_cast<__mmask16>(left >= kPanel ? 0xffff : (1 << left) - 1);
    const __m512i sum = _mm512_add_epi32(horizontal_sum(acc), _mm512_set1_epi32(row));
    const __m512 real = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), scale);
    if (a.y_float != nullptr) {
      _mm512_mask_storeu_ps(a.y_float + at, mask, real);
      return;
    }
    const __m512 steps = _mm512_min_ps(_mm512_max_ps(_mm512_mul_ps(real, inv_scale), low), high);
    const __m512i bits = _mm512_castps_si512(_mm512_add_ps(steps, shift));
    _mm_mask_storeu_epi8(a.y + at, mask, _mm512_cvtepi32_epi8(_mm512_add_epi32(bits, zero_point)));
  }
};
#else
struct Epilogue {
  const MatmulArgs& a;

  explicit Epilogue(const MatmulArgs& args) : a(args) {}

  void store(const Accumulators& of, int32_t row, int64_t at, int64_t left) const {
    int32_t acc[kPanel];
    horizontal_sum(of, acc);
    float real[kPanel];
    for (int64_t c = 0; c < kPanel; ++c) {
      const uint32_t sum = static_cast<uint32_t>(acc[c]) + static_cast<uint32_t>(row);  // modulo 2^32: the whole fits
      real[c] = static_cast<float>(static_cast<int32_t>(sum)) * a.scale;
    }
    const int64_t count = left < kPanel ? left : kPanel;
    if (a.y_float != nullptr) {
      std::memcpy(a.y_float + at, real, count * sizeof(float));
      return;
    }
    uint8_t bytes[kPanel];
    FXQ_INDEPENDENT
    for (int64_t c = 0; c < kPanel; ++c) bytes[c] = requantize(real[c], a.y_qparams);
    std::memcpy(a.y + at, bytes, count);
  }
};
#endif

}  // namespace
}  // namespace FXQ_ISA
}  // namespace fxquant
