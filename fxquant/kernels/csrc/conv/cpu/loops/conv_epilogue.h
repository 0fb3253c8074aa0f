// From the sums of a convolution to bytes of the result, or to real numbers. No torch.
#pragma once
#include "conv/cpu/loops/conv2d.h"
#include "cpu/loops/products.h"
#include "cpu/loops/vector.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

#if defined(__AVX512BW__)
class Epilogue {
 public:
  explicit Epilogue(const ConvArgs& a)
      : channels_(a.shape.channels),
        scale_(a.scale),
        bias_(a.bias),
        residual_(a.residual),
        y_(a.y),
        y_float_(a.y_float),
        byte_offset_(a.y_qparams.low + static_cast<float>(a.y_qparams.zero_point) < 0 ? 128 : 0),
        flip_(_mm512_set1_epi8(static_cast<char>(byte_offset_))),
        zero_point_(_mm512_set1_epi16(static_cast<int16_t>(a.y_qparams.zero_point + byte_offset_))),
        low_(_mm512_set1_epi8(
            static_cast<char>(static_cast<int32_t>(a.y_qparams.low) + a.y_qparams.zero_point + byte_offset_))),
        inv_scale_(_mm512_set1_ps(a.y_qparams.inv_scale)),
        high_(_mm512_set1_ps(a.y_qparams.high)),
        residual_flip_(_mm512_set1_epi32(a.residual_signed ? 0x80 : 0)),
        residual_zero_point_(_mm512_set1_epi32(a.residual_zero_point + (a.residual_signed ? 0x80 : 0))),
        residual_scale_(_mm512_set1_ps(a.residual_scale)) {}

  // V times 16 channels of a row, of which `left` are there. Inlined, so that sums need not lie in memory.
  template <int V>
  FXQ_INLINE void store(const Accumulators* acc, int64_t row, int64_t channel, int64_t left) const {
    left >= V * kPanel ? store_as<V, true>(acc, row, channel, left) : store_as<V, false>(acc, row, channel, left);
  }

 private:
  const int64_t channels_;
  const float* const scale_;
  const float* const bias_;
  const uint8_t* const residual_;
  uint8_t* const y_;
  float* const y_float_;
  // As unsigned bytes: what is stored as int8 is moved by 128, and flipped at the end.
  const int32_t byte_offset_;
  const __m512i flip_;
  const __m512i zero_point_;
  const __m512i low_;
  const __m512 inv_scale_;
  const __m512 high_;
  const __m512i residual_flip_;
  const __m512i residual_zero_point_;
  const __m512 residual_scale_;

  template <bool kWhole>
  FXQ_INLINE static __m512 floats(const float* from, __mmask16 mask) {
    return kWhole ? _mm512_loadu_ps(from) : _mm512_maskz_loadu_ps(mask, from);
  }

  template <int V, bool kWhole, int v = 0>
  FXQ_INLINE void scale(const Accumulators* acc, int64_t channel, const __mmask16* masks, __m512* real) const {
    const __m512 sum = _mm512_cvtepi32_ps(horizontal_sum(acc[v]));
    const __m512 scaled = _mm512_mul_ps(sum, floats<kWhole>(scale_ + channel + v * kPanel, masks[v]));
    real[v] = _mm512_add_ps(scaled, floats<kWhole>(bias_ + channel + v * kPanel, masks[v]));
    if constexpr (v + 1 < V) scale<V, kWhole, v + 1>(acc, channel, masks, real);
  }

  template <int V, bool kWhole>
  FXQ_INLINE void store_as(const Accumulators* acc, int64_t row, int64_t channel, int64_t left) const {
    const int64_t at = row * channels_ + channel;
    __mmask16 masks[V];
    FXQ_UNROLL
    for (int v = 0; v < V; ++v) masks[v] = kWhole ? 0xffff : mask_of(left - v * kPanel);
    __m512 real[V];
    scale<V, kWhole>(acc, channel, masks, real);
    if (residual_ != nullptr) {
      FXQ_UNROLL
      for (int v = 0; v < V; ++v) {
        const uint8_t* from = residual_ + at + v * kPanel;
        const __m128i bytes =
            kWhole ? _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)) : _mm_maskz_loadu_epi8(masks[v], from);
        const __m512i stored = _mm512_xor_si512(_mm512_cvtepu8_epi32(bytes), residual_flip_);
        const __m512 steps = _mm512_cvtepi32_ps(_mm512_sub_epi32(stored, residual_zero_point_));
        real[v] = _mm512_add_ps(real[v], _mm512_mul_ps(steps, residual_scale_));
      }
    }
    if (y_float_ != nullptr) {
      FXQ_UNROLL
      for (int v = 0; v < V; ++v) _mm512_mask_storeu_ps(y_float_ + at + v * kPanel, masks[v], real[v]);
    } else {
      store_bytes<V, kWhole>(requantized<V>(real), y_ + at, left);
    }
  }

  // What requantize() of math/requantize.h does. The minimum gives its second operand for NaN, which becomes the
  // smallest int32, as what lies below all of them does; saturation takes that to the lowest byte.
  template <int V>
  FXQ_INLINE __m512i requantized(const __m512* real) const {
    const __m512i first = pair(real[0], real[V > 1 ? 1 : 0]);
    const __m512i last = V > 2 ? pair(real[V > 2 ? 2 : 0], real[V > 3 ? 3 : 0]) : first;
    const __m512i bytes = _mm512_xor_si512(_mm512_max_epu8(_mm512_packus_epi16(first, last), low_), flip_);
    const __m512i order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    return _mm512_permutexvar_epi32(order, bytes);
  }

  FXQ_INLINE __m512i pair(__m512 a, __m512 b) const {
    return _mm512_adds_epi16(_mm512_packs_epi32(integers(a), integers(b)), zero_point_);
  }
  FXQ_INLINE __m512i integers(__m512 real) const {
    return _mm512_cvtps_epi32(_mm512_min_ps(high_, _mm512_mul_ps(real, inv_scale_)));
  }

  template <int V, bool kWhole>
  static FXQ_INLINE void store_bytes(__m512i bytes, uint8_t* y, int64_t left) {
    if (!kWhole) {
      _mm512_mask_storeu_epi8(y, (__mmask64{1} << left) - 1, bytes);
    } else if (V == 4) {
      _mm512_storeu_si512(y, bytes);
    } else if (V == 1) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(y), _mm512_castsi512_si128(bytes));
    } else {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(y), _mm512_castsi512_si256(bytes));
      if (V == 3) _mm_storeu_si128(reinterpret_cast<__m128i*>(y + 32), _mm512_extracti32x4_epi32(bytes, 2));
    }
  }
};
#else
struct Epilogue {
  const ConvArgs& a;

  explicit Epilogue(const ConvArgs& args) : a(args) {}

  template <int V>
  void store(const Accumulators* of, int64_t row, int64_t channel, int64_t left) const {
    for (int v = 0; v < V; ++v, channel += kPanel, left -= kPanel) {
      int32_t acc[kPanel];
      horizontal_sum(of[v], acc);
      if (left >= kPanel) {
        finish(acc, row, channel, kPanel);
      } else {
        finish(acc, row, channel, left);
      }
    }
  }

 private:
  void finish(const int32_t* acc, int64_t row, int64_t channel, int64_t count) const {
    const int64_t at = row * a.shape.channels + channel;
    float real[kPanel];
    for (int64_t c = 0; c < count; ++c) {
      real[c] = static_cast<float>(acc[c]) * a.scale[channel + c] + a.bias[channel + c];
    }
    if (a.residual != nullptr) {
      const int32_t flip = a.residual_signed ? 0x80 : 0;  // (q ^ 0x80) - 128 is q as an int8
      for (int64_t c = 0; c < count; ++c) {
        real[c] += dequantize((a.residual[at + c] ^ flip) - flip, a.residual_scale, a.residual_zero_point);
      }
    }
    if (a.y_float != nullptr) {
      for (int64_t c = 0; c < count; ++c) a.y_float[at + c] = real[c];
      return;
    }
    FXQ_INDEPENDENT
    for (int64_t c = 0; c < count; ++c) a.y[at + c] = requantize(real[c], a.y_qparams);
  }
};
#endif

}  // namespace
}  // namespace FXQ_ISA
}  // namespace fxquant
