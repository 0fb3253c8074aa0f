// Normalizes rows that lie one after the other, [rows][columns]. A task is a stretch of rows:
//
//   for four rows:                         # parallel
//       for row:
//           for column: the largest magnitude          # of float rows, which gives the exponent k
//           for column: scratch = round(x * 2^k), and the sums of that and of its squares, as integers: exact
//       for row:
//           for column: subtract the mean, multiply by weight / deviation, add bias, round, clamp, store
#include "norm/cpu/loops/layer_norm.h"

#include "cpu/loops/blocks.h"
#include "math/layer_norm.h"
#include "norm/cpu/loops/row_vectors.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

struct Sums {
  int64_t values;
  int64_t squares;
};

#if defined(__AVX512BW__)
// A lane holds the sum of so many steps.
constexpr int64_t kSummed = 256 * kVector;

inline uint32_t largest_magnitude(const float* x, int64_t count) {
  __m512i largest = _mm512_setzero_si512();
  for_each_vector(count, [&](int64_t i, auto lanes) {
    const __m512i magnitude = _mm512_and_si512(load_integers(x + i, lanes), _mm512_set1_epi32(0x7fffffff));
    largest = _mm512_maskz_max_epi32(kAll, largest, magnitude);
  });
  return static_cast<uint32_t>(largest_of(largest));
}

inline Sums steps_of(const float* x, float factor, int32_t* steps, int64_t count) {
  const __m512 by = _mm512_set1_ps(factor);
  __m512i values = _mm512_setzero_si512(), even_squares = values, odd_squares = values;
  for (int64_t first = 0; first < count; first += kSummed) {
    __m512i sum = _mm512_setzero_si512();
    for_each_vector(count - first < kSummed ? count - first : kSummed, [&](int64_t k, auto lanes) {
      const __m512i step = _mm512_maskz_cvtps_epi32(kAll, _mm512_mul_ps(load_floats(x + first + k, lanes), by));
      const __m512i odd = _mm512_maskz_srli_epi64(0xff, step, 32);
      store_integers(steps + first + k, lanes, step);
      sum = _mm512_add_epi32(sum, step);
      even_squares = _mm512_add_epi64(even_squares, _mm512_maskz_mul_epi32(0xff, step, step));
      odd_squares = _mm512_add_epi64(odd_squares, _mm512_maskz_mul_epi32(0xff, odd, odd));
    });
    values = _mm512_add_epi64(values, halves_added(sum));
  }
  return {sum_of_lanes(values), sum_of_lanes(_mm512_add_epi64(even_squares, odd_squares))};
}

template <typename Q>
inline Sums steps_of(const Q* x, int32_t* steps, int64_t count) {
  __m512i values = _mm512_setzero_si512(), squares = values;  // of at most 2^19 values: neither overflows 32 bits
  for_each_vector(count, [&](int64_t i, auto lanes) {
    const __m512i step = load_quantized(x + i, lanes);
    store_integers(steps + i, lanes, step);
    const __m512i low_half = _mm512_and_si512(step, _mm512_set1_epi32(0xffff));  // times the upper one, a sign, it is 0
    values = _mm512_add_epi32(values, step);
    squares = _mm512_add_epi32(squares, _mm512_maskz_madd_epi16(kAll, step, low_half));
  });
  return {sum_of_lanes(halves_added(values)), sum_of_lanes(halves_added(squares))};
}

inline void store(const int32_t* steps, const float* weight, const float* bias, uint8_t* y, int64_t count,
                  const Moments& m, const OutputQParams& y_qparams) {
  const StoredVectors stored(y_qparams);
  const __m512i center = _mm512_set1_epi32(m.center);
  const __m512 rest = _mm512_set1_ps(m.rest), inverse = _mm512_set1_ps(m.inverse);
  for_each_vector(count, [&](int64_t i, auto lanes) {
    const __m512i off = _mm512_sub_epi32(load_integers(steps + i, lanes), center);
    const __m512 unscaled = _mm512_mul_ps(_mm512_sub_ps(_mm512_maskz_cvtepi32_ps(kAll, off), rest), inverse);
    const __m512 scaled = _mm512_mul_ps(unscaled, load_floats(weight + i, lanes));
    stored.store(y + i, lanes, _mm512_add_ps(scaled, load_floats(bias + i, lanes)));
  });
}
#else
FXQ_ONE_LOOP uint32_t largest_magnitude(const float* FXQ_RESTRICT x, int64_t count) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t magnitude = bits_of_float(x[i]) & 0x7fffffffu;
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
}

FXQ_ONE_LOOP Sums steps_of(const float* FXQ_RESTRICT x, float factor, int32_t* FXQ_RESTRICT steps, int64_t count) {
  int64_t values = 0, squares = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t step = to_steps(x[i], factor);
    steps[i] = step;
    values += step;
    squares += static_cast<int64_t>(step) * step;
  }
  return {values, squares};
}

template <typename Q>
FXQ_ONE_LOOP Sums steps_of(const Q* FXQ_RESTRICT x, int32_t* FXQ_RESTRICT steps, int64_t count) {
  int64_t values = 0, squares = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t step = x[i];
    steps[i] = step;
    values += step;
    squares += step * step;
  }
  return {values, squares};
}

FXQ_ONE_LOOP void store(const int32_t* FXQ_RESTRICT steps, const float* FXQ_RESTRICT weight,
                        const float* FXQ_RESTRICT bias, uint8_t* FXQ_RESTRICT y, int64_t count, const Moments m,
                        const OutputQParams y_qparams) {
  for (int64_t i = 0; i < count; ++i) y[i] = requantize(normalized(steps[i], m, weight[i], bias[i]), y_qparams);
}

#endif

Moments float_row(const LayerNormArgs& args, int64_t row, int32_t* steps) {
  const float* x = static_cast<const float*>(args.x) + row * args.columns;
  const uint32_t largest = largest_magnitude(x, args.columns);
  if (largest >= 0x7f800000u) {  // NaN or infinity: all are NaN then
    for (int64_t i = 0; i < args.columns; ++i) steps[i] = 0;
    return {0, 0.0f, float_of_bits(0x7fc00000u)};
  }
  const int32_t k = step_exponent(largest);
  const Sums sums = steps_of(x, power_of_two(k), steps, args.columns);
  return moments_of(sums.values, sums.squares, args.columns, eps_in_steps(args.eps, k));
}

template <typename Q>
Moments quantized_row(const LayerNormArgs& args, int64_t row, int32_t* steps) {
  const Sums sums = steps_of(static_cast<const Q*>(args.x) + row * args.columns, steps, args.columns);
  return moments_of(sums.values, sums.squares, args.columns, args.eps);
}

}  // namespace

void layer_norm_loop(const LayerNormArgs& args, int64_t begin, int64_t end, int32_t* steps) {
  const int64_t together = rows_together(args.columns);
  Moments moments[4];
  for (int64_t first = begin; first < end; first += together) {
    const int64_t count = end - first < together ? end - first : together;
    for (int64_t r = 0; r < count; ++r) {
      int32_t* of_row = steps + r * args.columns;
      moments[r] = args.type == RowType::kFloat   ? float_row(args, first + r, of_row)
                   : args.type == RowType::kUint8 ? quantized_row<uint8_t>(args, first + r, of_row)
                                                  : quantized_row<int8_t>(args, first + r, of_row);
    }
    for (int64_t r = 0; r < count; ++r) {
      store(steps + r * args.columns, args.weight, args.bias, args.y + (first + r) * args.columns, args.columns,
            moments[r], args.y_qparams);
    }
  }
}

}  // namespace FXQ_ISA
}  // namespace fxquant
