// Epilogue of a convolution: value = accumulator * scale + bias + residual, for each channel; then it is stored. No torch.
// A row is one of the product: a pixel of a convolution, or a row of a linear layer.
#pragma once
#include "conv/cpu/loops/conv_args.h"
#include "cpu/loops/loop_pragmas.h"
#include "cpu/loops/output_store.h"
#include "cpu/loops/products.h"
#include "math/per_token.h"

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
        residual_flip_(_mm512_set1_epi32(a.residual_signed ? 0x80 : 0)),
        residual_zero_point_(_mm512_set1_epi32(a.residual_zero_point + (a.residual_signed ? 0x80 : 0))),
        residual_scale_(_mm512_set1_ps(a.residual_scale)),
        row_scale_(a.row_scale),
        row_zero_point_(a.row_zero_point),
        weight_sums_(a.weight_sums),
        output_(a.y, a.y_float, a.y_qparams) {}

  // Finishes V panels of one row, of whose channels `left` exist. Inlined, so that accumulators stay in registers.
  template <int V>
  FXQ_INLINE void store(const Accumulators* acc, int64_t row, int64_t channel, int64_t left) const {
    left >= V * kPanel ? store_as<V, true>(acc, row, channel, left) : store_as<V, false>(acc, row, channel, left);
  }

 private:
  const int64_t channels_;
  const float* const scale_;
  const float* const bias_;
  const uint8_t* const residual_;
  const __m512i residual_flip_;
  const __m512i residual_zero_point_;
  const __m512 residual_scale_;
  const float* const row_scale_;
  const int32_t* const row_zero_point_;
  const int32_t* const weight_sums_;
  const OutputStore output_;

  template <bool kWhole>
  FXQ_INLINE static __m512 floats(const float* from, __mmask16 mask) {
    return kWhole ? _mm512_loadu_ps(from) : _mm512_maskz_loadu_ps(mask, from);
  }

  template <int V, bool kWhole, int v = 0>
  FXQ_INLINE void scale(const Accumulators* acc, int64_t channel, const __mmask16* masks, __m512* values) const {
    const __m512 sum = _mm512_cvtepi32_ps(horizontal_sum(acc[v]));
    const __m512 scaled = _mm512_mul_ps(sum, floats<kWhole>(scale_ + channel + v * kPanel, masks[v]));
    values[v] = _mm512_add_ps(scaled, floats<kWhole>(bias_ + channel + v * kPanel, masks[v]));
    if constexpr (v + 1 < V) scale<V, kWhole, v + 1>(acc, channel, masks, values);
  }

  // per_token_value() of math/per_token.h, plus bias.
  template <int V, bool kWhole, int v = 0>
  FXQ_INLINE void scale_row(const Accumulators* acc, int64_t row, int64_t channel, const __mmask16* masks,
                            __m512* values) const {
    const __m512i zero_point = _mm512_set1_epi32(row_zero_point_[row]);
    const __m512i weights = _mm512_maskz_loadu_epi32(masks[v], weight_sums_ + channel + v * kPanel);
    const __m512i exact = _mm512_sub_epi32(horizontal_sum(acc[v]), _mm512_mullo_epi32(zero_point, weights));
    const __m512 both =
        _mm512_mul_ps(_mm512_set1_ps(row_scale_[row]), floats<kWhole>(scale_ + channel + v * kPanel, masks[v]));
    const __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(exact), both);
    values[v] = _mm512_add_ps(scaled, floats<kWhole>(bias_ + channel + v * kPanel, masks[v]));
    if constexpr (v + 1 < V) scale_row<V, kWhole, v + 1>(acc, row, channel, masks, values);
  }

  template <int V, bool kWhole>
  FXQ_INLINE void store_as(const Accumulators* acc, int64_t row, int64_t channel, int64_t left) const {
    const int64_t at = row * channels_ + channel;
    __mmask16 masks[V];
    masks_of<V, kWhole>(left, masks);
    __m512 values[V];
    if (row_scale_ != nullptr) {
      scale_row<V, kWhole>(acc, row, channel, masks, values);
    } else {
      scale<V, kWhole>(acc, channel, masks, values);
    }
    if (residual_ != nullptr) {
      FXQ_UNROLL
      for (int v = 0; v < V; ++v) {
        const uint8_t* from = residual_ + at + v * kPanel;
        const __m128i bytes =
            kWhole ? _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)) : _mm_maskz_loadu_epi8(masks[v], from);
        const __m512i quantized = _mm512_xor_si512(_mm512_cvtepu8_epi32(bytes), residual_flip_);
        const __m512 units = _mm512_cvtepi32_ps(_mm512_sub_epi32(quantized, residual_zero_point_));
        values[v] = _mm512_add_ps(values[v], _mm512_mul_ps(units, residual_scale_));
      }
    }
    output_.store<V, kWhole>(values, masks, at, left);
  }
};
#else
class Epilogue {
 public:
  explicit Epilogue(const ConvArgs& a) : a_(a), output_{a.y, a.y_float, a.y_qparams} {}

  // Finishes V panels of one row, of whose channels `left` exist.
  template <int V>
  void store(const Accumulators* acc, int64_t row, int64_t channel, int64_t left) const {
    for (int v = 0; v < V; ++v, channel += kPanel, left -= kPanel) {
      int32_t sums[kPanel];
      horizontal_sum(acc[v], sums);
      if (left >= kPanel) {
        finish(sums, row, channel, kPanel);
      } else {
        finish(sums, row, channel, left);
      }
    }
  }

 private:
  const ConvArgs& a_;
  const OutputStore output_;

  void finish(const int32_t* sums, int64_t row, int64_t channel, int64_t count) const {
    const int64_t at = row * a_.shape.channels + channel;
    float values[kPanel];
    if (a_.row_scale != nullptr) {
      const float row_scale = a_.row_scale[row];
      const int32_t zero_point = a_.row_zero_point[row];
      for (int64_t c = 0; c < count; ++c) {
        const int64_t k = channel + c;
        values[c] = per_token_value(sums[c], row_scale, zero_point, a_.weight_sums[k], a_.scale[k]) + a_.bias[k];
      }
    } else {
      for (int64_t c = 0; c < count; ++c) {
        values[c] = static_cast<float>(sums[c]) * a_.scale[channel + c] + a_.bias[channel + c];
      }
    }
    if (a_.residual != nullptr) {
      const int32_t flip = a_.residual_signed ? 0x80 : 0;  // (q ^ 0x80) - 128 is q as an int8.
      for (int64_t c = 0; c < count; ++c) {
        values[c] += dequantize((a_.residual[at + c] ^ flip) - flip, a_.residual_scale, a_.residual_zero_point);
      }
    }
    output_.store(values, at, count);
  }
};
#endif

// Finishes a tile of R rows.
template <int R, int V, int r = 0>
FXQ_INLINE void store_rows(const Epilogue& epilogue, const Accumulators (*acc)[V], int64_t row, int64_t channel,
                           int64_t left) {
  epilogue.store<V>(acc[r], row + r, channel, left);
  if constexpr (r + 1 < R) store_rows<R, V, r + 1>(epilogue, acc, row, channel, left);
}

}  // namespace
}  // namespace FXQ_ISA
}  // namespace fxquant
