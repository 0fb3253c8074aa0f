// Normalizes rows that lie one after the other, [rows][columns]. A task is a stretch of rows:
//
//   for four rows:                         # parallel
//       for row:
//           for column: the largest magnitude          # of float rows, which gives the exponent k
//           for column: scratch = round(x * 2^k), and the sums of that and of its squares, as integers: exact
//       for row:
//           for column: subtract the mean, multiply by weight / deviation, add bias, round, clamp, store
//
// With AVX-512 quantized rows need no scratch: they are read twice. There scratch holds the steps of a float row as floats,
// and 64 results are packed and stored at a time.
#include "norm/cpu/loops/layer_norm.h"

#include <type_traits>

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
// A step is held as the float kShift + step, whose bits are those of kShift plus the step. Floats from kShift - 2^22 to
// kShift + 2^22 are 1 apart, so adding x * 2^k rounds it, half to even.
constexpr float kShift = kRoundingShift;
static_assert(kStepBits <= 22, "steps are added to kShift");
// 2^23, whose lowest bits are a byte that is added.
constexpr float kByteShift = 8388608.0f;

inline uint32_t largest_magnitude(const float* x, int64_t count) {
  __m512i largest = _mm512_setzero_si512();
  for_each_vector(count, [&](int64_t i, auto lanes) {
    const __m512i magnitude = _mm512_and_si512(load_integers(x + i, lanes), _mm512_set1_epi32(0x7fffffff));
    largest = _mm512_maskz_max_epi32(kAll, largest, magnitude);
  });
  return static_cast<uint32_t>(largest_of(largest));
}

inline Sums steps_of(const float* x, float factor, int32_t* steps, int64_t count) {
  const __m512 by = _mm512_set1_ps(factor), shift = _mm512_set1_ps(kShift);
  __m512i values = _mm512_setzero_si512(), even_squares = values, odd_squares = values;
  for (int64_t first = 0; first < count; first += kSummed) {
    __m512i sum = _mm512_setzero_si512();
    for_each_vector(count - first < kSummed ? count - first : kSummed, [&](int64_t k, auto lanes) {
      // One rounding is as good as two: the product with a power of two is exact, or so small that its step is 0 anyway.
      const __m512 shifted = _mm512_fmadd_ps(load_floats(x + first + k, lanes), by, shift);
      const __m512i step = _mm512_sub_epi32(_mm512_castps_si512(shifted), _mm512_castps_si512(shift));
      const __m512i odd = _mm512_maskz_srli_epi64(0xff, step, 32);
      store_integers(steps + first + k, lanes, _mm512_castps_si512(shifted));
      sum = _mm512_add_epi32(sum, step);
      even_squares = _mm512_add_epi64(even_squares, _mm512_maskz_mul_epi32(0xff, step, step));
      odd_squares = _mm512_add_epi64(odd_squares, _mm512_maskz_mul_epi32(0xff, odd, odd));
    });
    values = _mm512_add_epi64(values, halves_added(sum));
  }
  return {sum_of_lanes(values), sum_of_lanes(_mm512_add_epi64(even_squares, odd_squares))};
}

// An int8 is read as a uint8 that is 128 higher.
template <typename Q>
constexpr int64_t kHigher = std::is_signed<Q>::value ? 128 : 0;

template <typename Q>
inline Sums sums_of(const Q* x, int64_t count) {
  const __m512i zero = _mm512_setzero_si512(), flip = _mm512_set1_epi8(static_cast<char>(kHigher<Q>));
  __m512i values = zero, squares = zero;  // of at most 2^19 values: neither overflows its lanes of 64 and 32 bits
  const auto add = [&](__m512i bytes) {
    const __m512i even = _mm512_and_si512(bytes, _mm512_set1_epi16(0xff));
    const __m512i odd = _mm512_maskz_srli_epi16(~__mmask32{0}, bytes, 8);
    values = _mm512_add_epi64(values, _mm512_sad_epu8(bytes, zero));
    squares = _mm512_add_epi32(squares, _mm512_add_epi32(_mm512_madd_epi16(even, even), _mm512_madd_epi16(odd, odd)));
  };
  int64_t i = 0;
  for (; i + 64 <= count; i += 64) {
    const __m512i bytes = _mm512_loadu_si512(x + i);
    add(kHigher<Q> != 0 ? _mm512_xor_si512(bytes, flip) : bytes);
  }
  if (i < count) {
    const __mmask64 lanes = (__mmask64{1} << (count - i)) - 1;
    add(_mm512_maskz_add_epi8(lanes, _mm512_maskz_loadu_epi8(lanes, x + i), flip));
  }
  const int64_t sum = sum_of_lanes(values) - kHigher<Q> * count;
  return {sum, sum_of_lanes(halves_added(squares)) - 2 * kHigher<Q> * sum - kHigher<Q> * kHigher<Q> * count};
}

// How far the values of a row lie from the whole number in the middle of it: the differences are exact.
template <typename T>
class FromCenter {
 public:
  FromCenter(const T* x, int32_t center)
      : x_(x), center_(_mm512_set1_ps(kByteShift + static_cast<float>(center + kHigher<T>))) {}

  template <typename Lanes>
  inline __m512 operator()(int64_t i, Lanes lanes) const {
    const __m512i four_times = _mm512_broadcast_i32x4(load_bytes(x_ + i, lanes));
    __m512i shifted = _mm512_mask_shuffle_epi8(shift_, 0x1111111111111111, four_times, order_);
    if (kHigher<T> != 0) shifted = _mm512_xor_si512(shifted, _mm512_set1_epi32(kHigher<T>));
    return _mm512_sub_ps(_mm512_castsi512_ps(shifted), center_);
  }

 private:
  const T* const x_;
  const __m512 center_;
  const __m512i shift_ = _mm512_castps_si512(_mm512_set1_ps(kByteShift));
  const __m512i order_ = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
};

template <>
class FromCenter<float> {
 public:
  FromCenter(const int32_t* steps, int32_t center)
      : steps_(steps), center_(_mm512_set1_ps(kShift + static_cast<float>(center))) {}

  template <typename Lanes>
  inline __m512 operator()(int64_t i, Lanes lanes) const {
    return _mm512_sub_ps(_mm512_castsi512_ps(load_integers(steps_ + i, lanes)), center_);
  }

 private:
  const int32_t* const steps_;
  const __m512 center_;
};

// normalized() of a row, and its results.
template <typename T>
class NormalizedRow {
 public:
  template <typename Values>
  inline NormalizedRow(const LayerNormArgs& args, const Values* row, const Moments& m)
      : from_center_(row, m.center),
        weight_(args.weight),
        bias_(args.bias),
        rest_(_mm512_set1_ps(m.rest)),
        inverse_(_mm512_set1_ps(m.inverse)) {}

  // `at` is the index of the first result.
  inline void store(const StoredVectors& output, int64_t at, int64_t count) const {
    int64_t i = 0;
    for (; i + 4 * kVector <= count; i += 4 * kVector) store_vectors<4>(output, at, i, 4 * kVector, AllLanes());
    store_end<4>(output, at, i, count - i);
  }

 private:
  const FromCenter<T> from_center_;
  const float* const weight_;
  const float* const bias_;
  const __m512 rest_;
  const __m512 inverse_;

  template <typename Lanes>
  inline __m512 values(int64_t i, Lanes lanes) const {
    const __m512 unscaled = _mm512_mul_ps(_mm512_sub_ps(from_center_(i, lanes), rest_), inverse_);
    return _mm512_add_ps(_mm512_mul_ps(unscaled, load_floats(weight_ + i, lanes)), load_floats(bias_ + i, lanes));
  }
  // V vectors from column i on, the last one of them as `lanes` say.
  template <int V, typename Lanes>
  inline void store_vectors(const StoredVectors& output, int64_t at, int64_t i, int64_t left, Lanes lanes) const {
    __m512 found[V];
    FXQ_UNROLL
    for (int v = 0; v + 1 < V; ++v) found[v] = values(i + v * kVector, AllLanes());
    found[V - 1] = values(i + (V - 1) * kVector, lanes);
    output.template store<V>(found, at + i, left);
  }
  // The last columns, which fill at most V vectors.
  template <int V>
  inline void store_end(const StoredVectors& output, int64_t at, int64_t i, int64_t left) const {
    const int64_t in_last = left - (V - 1) * kVector;
    if (in_last == kVector) {
      store_vectors<V>(output, at, i, V * kVector, AllLanes());
    } else if (in_last > 0) {
      store_vectors<V>(output, at, i, left, static_cast<SomeLanes>((1 << in_last) - 1));
    } else if constexpr (V > 1) {
      store_end<V - 1>(output, at, i, left);
    }
  }
};
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

Moments moments_of_row(const LayerNormArgs& args, const float* x, int32_t* steps) {
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
Moments moments_of_row(const LayerNormArgs& args, const Q* x, int32_t* steps) {
#if defined(__AVX512BW__)
  static_cast<void>(steps);
  const Sums sums = sums_of(x, args.columns);
#else
  const Sums sums = steps_of(x, steps, args.columns);
#endif
  return moments_of(sums.values, sums.squares, args.columns, args.eps);
}

template <typename T>
void normalize_rows(const LayerNormArgs& args, int64_t begin, int64_t end, int32_t* steps) {
  const T* x = static_cast<const T*>(args.x);
  const int64_t together = rows_together(args.columns);
#if defined(__AVX512BW__)
  const StoredVectors output(args.y, args.y_qparams);
#endif
  Moments moments[kRowsTogether];
  for (int64_t first = begin; first < end; first += together) {
    const int64_t count = end - first < together ? end - first : together;
    for (int64_t r = 0; r < count; ++r) {
      moments[r] = moments_of_row(args, x + (first + r) * args.columns, steps + r * args.columns);
    }
    for (int64_t r = 0; r < count; ++r) {
      const int64_t at = (first + r) * args.columns;
      const int32_t* of_row = steps + r * args.columns;
#if defined(__AVX512BW__)
      if constexpr (std::is_same<T, float>::value) {
        NormalizedRow<T>(args, of_row, moments[r]).store(output, at, args.columns);
      } else {
        NormalizedRow<T>(args, x + at, moments[r]).store(output, at, args.columns);
      }
#else
      store(of_row, args.weight, args.bias, args.y + at, args.columns, moments[r], args.y_qparams);
#endif
    }
  }
}

}  // namespace

void layer_norm_loop(const LayerNormArgs& args, int64_t begin, int64_t end, int32_t* steps) {
  args.type == RowType::kFloat   ? normalize_rows<float>(args, begin, end, steps)
  : args.type == RowType::kUint8 ? normalize_rows<uint8_t>(args, begin, end, steps)
                                 : normalize_rows<int8_t>(args, begin, end, steps);
}

}  // namespace FXQ_ISA
}  // namespace fxquant
