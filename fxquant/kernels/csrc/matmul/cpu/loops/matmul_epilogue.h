// Epilogue of a product of two activations: value = (accumulator + term of the row) * scale; then it is stored. No torch.
#pragma once
#include "cpu/loops/loop_pragmas.h"
#include "cpu/loops/output_store.h"
#include "cpu/loops/products.h"
#include "matmul/cpu/loops/matmul.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

// Returns the sum of the bytes of a row, modulo 2^32.
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

// Returns the sum of the bytes of a row as int8, modulo 2^32.
inline uint32_t signed_sum_of(const uint8_t* row, int64_t count) {
  int32_t sum = 0;
  for (int64_t k = 0; k < count; ++k) sum = add_modulo(sum, static_cast<int8_t>(row[k]));
  return static_cast<uint32_t>(sum);
}

#if defined(__AVX512BW__)
class Epilogue {
 public:
  explicit Epilogue(const MatmulArgs& a)
      : columns_(a.columns), scale_(_mm512_set1_ps(a.scale)), output_(a.y, a.y_float, a.y_qparams) {}

  int64_t columns() const { return columns_; }

  // Finishes V panels of one row, from index `at` of the result on. `left` columns exist from there on.
  template <int V>
  FXQ_INLINE void store(const Accumulators* acc, int32_t row_term, int64_t at, int64_t left) const {
    left >= V * kPanel ? store_as<V, true>(acc, row_term, at, left) : store_as<V, false>(acc, row_term, at, left);
  }

 private:
  const int64_t columns_;
  const __m512 scale_;
  const OutputStore output_;

  template <int V, int v = 0>
  FXQ_INLINE void scale(const Accumulators* acc, __m512i row_term, __m512* values) const {
    const __m512i sum = _mm512_add_epi32(horizontal_sum(acc[v]), row_term);
    values[v] = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), scale_);
    if constexpr (v + 1 < V) scale<V, v + 1>(acc, row_term, values);
  }

  template <int V, bool kWhole>
  FXQ_INLINE void store_as(const Accumulators* acc, int32_t row_term, int64_t at, int64_t left) const {
    __mmask16 masks[V];
    masks_of<V, kWhole>(left, masks);
    __m512 values[V];
    scale<V>(acc, _mm512_set1_epi32(row_term), values);
    output_.store<V, kWhole>(values, masks, at, left);
  }
};
#else
class Epilogue {
 public:
  explicit Epilogue(const MatmulArgs& a) : columns_(a.columns), scale_(a.scale), output_{a.y, a.y_float, a.y_qparams} {}

  int64_t columns() const { return columns_; }

  // Finishes V panels of one row, from index `at` of the result on. `left` columns exist from there on.
  template <int V>
  void store(const Accumulators* acc, int32_t row_term, int64_t at, int64_t left) const {
    for (int v = 0; v < V; ++v, at += kPanel, left -= kPanel) {
      int32_t sums[kPanel];
      horizontal_sum(acc[v], sums);
      float values[kPanel];
      for (int64_t c = 0; c < kPanel; ++c) {
        // Computed modulo 2^32: the parts may overflow, the whole does not.
        const uint32_t sum = static_cast<uint32_t>(sums[c]) + static_cast<uint32_t>(row_term);
        values[c] = static_cast<float>(static_cast<int32_t>(sum)) * scale_;
      }
      if (left >= kPanel) {
        output_.store(values, at, kPanel);
      } else {
        output_.store(values, at, left);
      }
    }
  }

 private:
  const int64_t columns_;
  const float scale_;
  const OutputStore output_;
};
#endif

}  // namespace
}  // namespace FXQ_ISA
}  // namespace fxquant
