// Epilogue of a convolution: value = accumulator * scale + bias + residual, for each channel; then it is stored. No torch.
// A row is one of the product: a pixel of a convolution, or a row of a linear layer.
#pragma once
#include "conv/cpu/loops/conv_args.h"
#include "conv/cpu/loops/clamp_at.h"
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
        row_step_(a.row_step),
        weight_sums_(a.weight_sums),
        clamp_at_(a.y_float != nullptr ? kFloats : clamp_of_bytes(a, 0, a.shape.channels)),
        output_(a.y, a.y_float, a.y_qparams, a.float_limits) {}

  // Finishes R rows of V panels, of whose channels `channels_left` exist. Bytes are computed panel by panel: scale and bias of
  // a panel are loaded once for all rows, and the rows do not wait for each other.
  template <int R, int V>
  FXQ_INLINE void store_tile(const Accumulators (*acc)[V], int64_t row, int64_t channel, int64_t channels_left) const {
    if (clamp_at_ == kFloats || row_scale_ != nullptr) return store_rows<R, V>(acc, row, channel, channels_left);
    const int64_t at = row * channels_ + channel;
    __m512i integers[R][V];
    round_panels<R, V>(acc, at, channel, channels_left, integers);
    channels_left >= V * kPanel ? store_steps<R, V, true>(integers, at, channels_left)
                                : store_steps<R, V, false>(integers, at, channels_left);
  }

  // Finishes V panels of one row, of whose channels `channels_left` exist. Inlined, so that accumulators stay in registers.
  template <int V>
  FXQ_INLINE void store(const Accumulators* acc, int64_t row, int64_t channel, int64_t channels_left) const {
    channels_left >= V * kPanel ? store_as<V, true>(acc, row, channel, channels_left)
                                : store_as<V, false>(acc, row, channel, channels_left);
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
  const int64_t row_step_;
  const int32_t* const weight_sums_;
  const ClampAt clamp_at_;
  const OutputStore output_;

  template <int R, int V, int r = 0>
  FXQ_INLINE void store_rows(const Accumulators (*acc)[V], int64_t row, int64_t channel, int64_t channels_left) const {
    store<V>(acc[r], row + r, channel, channels_left);
    if constexpr (r + 1 < R) store_rows<R, V, r + 1>(acc, row, channel, channels_left);
  }

  template <int R, int V, int v, int r = 0>
  FXQ_INLINE static void scale_panel(const Accumulators (*acc)[V], __m512 scale, __m512 bias, __m512* values) {
    values[r] = _mm512_add_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(horizontal_sum(acc[r][v])), scale), bias);
    if constexpr (r + 1 < R) scale_panel<R, V, v, r + 1>(acc, scale, bias, values);
  }
  template <int R, int r = 0>
  FXQ_INLINE void add_residual(const uint8_t* from, __mmask16 mask, __m512* values) const {
    const __m512i bytes = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(mask, from));
    const __m512i integers = _mm512_sub_epi32(_mm512_xor_si512(bytes, residual_flip_), residual_zero_point_);
    values[r] = _mm512_add_ps(values[r], _mm512_mul_ps(_mm512_cvtepi32_ps(integers), residual_scale_));
    if constexpr (r + 1 < R) add_residual<R, r + 1>(from + channels_, mask, values);
  }
  template <int R, int V, int v, bool kClamps, int r = 0>
  FXQ_INLINE void round_panel(const __m512* values, __m512i (*integers)[V]) const {
    integers[r][v] = output_.integers<kClamps>(values[r]);
    if constexpr (r + 1 < R) round_panel<R, V, v, kClamps, r + 1>(values, integers);
  }
  // Divides by the scale of the result and rounds. `at` is the index of the first channel of the first row.
  template <int R, int V, int v = 0>
  FXQ_INLINE void round_panels(const Accumulators (*acc)[V], int64_t at, int64_t channel, int64_t channels_left,
                               __m512i (*integers)[V]) const {
    const __mmask16 mask = mask_of(channels_left - v * kPanel);
    __m512 values[R];
    scale_panel<R, V, v>(acc, _mm512_maskz_loadu_ps(mask, scale_ + channel + v * kPanel),
                         _mm512_maskz_loadu_ps(mask, bias_ + channel + v * kPanel), values);
    if (residual_ != nullptr) add_residual<R>(residual_ + at + v * kPanel, mask, values);
    clamp_at_ == kClampValues ? round_panel<R, V, v, true>(values, integers) : round_panel<R, V, v, false>(values, integers);
    if constexpr (v + 1 < V) round_panels<R, V, v + 1>(acc, at, channel, channels_left, integers);
  }
  template <int R, int V, bool kWhole, int r = 0>
  FXQ_INLINE void store_steps(const __m512i (*integers)[V], int64_t at, int64_t channels_left) const {
    output_.store_steps<V, kWhole>(integers[r], clamp_at_ != kSaturate, at, channels_left);
    if constexpr (r + 1 < R) store_steps<R, V, kWhole, r + 1>(integers, at + channels_, channels_left);
  }

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
    const __m512i zero_point = _mm512_set1_epi32(row_zero_point_[row * row_step_]);
    const __m512i weights = _mm512_maskz_loadu_epi32(masks[v], weight_sums_ + channel + v * kPanel);
    const __m512i exact = _mm512_sub_epi32(horizontal_sum(acc[v]), _mm512_mullo_epi32(zero_point, weights));
    const __m512 both =
        _mm512_mul_ps(_mm512_set1_ps(row_scale_[row * row_step_]), floats<kWhole>(scale_ + channel + v * kPanel, masks[v]));
    const __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(exact), both);
    values[v] = _mm512_add_ps(scaled, floats<kWhole>(bias_ + channel + v * kPanel, masks[v]));
    if constexpr (v + 1 < V) scale_row<V, kWhole, v + 1>(acc, row, channel, masks, values);
  }

  template <int V, bool kWhole>
  FXQ_INLINE void store_as(const Accumulators* acc, int64_t row, int64_t channel, int64_t channels_left) const {
    const int64_t at = row * channels_ + channel;
    __mmask16 masks[V];
    masks_of<V, kWhole>(channels_left, masks);
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
        const __m512 from_zero_point = _mm512_cvtepi32_ps(_mm512_sub_epi32(quantized, residual_zero_point_));
        values[v] = _mm512_add_ps(values[v], _mm512_mul_ps(from_zero_point, residual_scale_));
      }
    }
    output_.store<V, kWhole>(values, masks, at, channels_left);
  }
};
#else
class Epilogue {
 public:
  explicit Epilogue(const ConvArgs& a) : a_(a), output_{a.y, a.y_float, a.y_qparams, a.float_limits} {}

  // Finishes R rows of V panels, of whose channels `channels_left` exist.
  template <int R, int V, int r = 0>
  FXQ_INLINE void store_tile(const Accumulators (*acc)[V], int64_t row, int64_t channel, int64_t channels_left) const {
    store<V>(acc[r], row + r, channel, channels_left);
    if constexpr (r + 1 < R) store_tile<R, V, r + 1>(acc, row, channel, channels_left);
  }
  // Finishes V panels of one row.
  template <int V>
  void store(const Accumulators* acc, int64_t row, int64_t channel, int64_t channels_left) const {
    for (int v = 0; v < V; ++v, channel += kPanel, channels_left -= kPanel) {
      int32_t sums[kPanel];
      horizontal_sum(acc[v], sums);
      if (channels_left >= kPanel) {
        finish(sums, row, channel, kPanel);
      } else {
        finish(sums, row, channel, channels_left);
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
      const float row_scale = a_.row_scale[row * a_.row_step];
      const int32_t zero_point = a_.row_zero_point[row * a_.row_step];
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

}  // namespace
}  // namespace FXQ_ISA
}  // namespace fxquant
