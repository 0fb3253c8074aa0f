// Computes softmax of rows that lie one after the other, [rows][columns]. A task is a stretch of rows:
//
//   for row:                           # parallel
//       for column: the largest value
//       for column: scratch = e^(x - largest) in multiples of 2^-30; of quantized rows from a table of 256
//       for column: the sum of scratch, as an integer: exact
//       for column: divide by the sum, round, clamp, store
//
// With AVX-512 several rows are under way at once. Rows of up to 64 values stay in registers all the way. The exponentials of
// quantized rows are computed as those of floats there.
#include "norm/cpu/loops/softmax.h"

#include <cmath>

#include "cpu/loops/blocks.h"
#include "cpu/loops/rows.h"
#include "math/histogram.h"
#include "math/softmax.h"
#include "norm/cpu/loops/row_vectors.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

#if defined(__AVX512BW__)
constexpr int64_t kShortRow = 64;

// exp_steps of 16 values. Adding kShift rounds to whole numbers, half to even, and leaves them in the low bits: kExpBits is even.
inline __m512i exp_vector(__m512 x) {
  constexpr float kShift = kRoundingShift + static_cast<float>(kExpBits);
  const __m512 doublings = _mm512_mul_ps(x, _mm512_set1_ps(1.4426950408889634f));
  const __m512 power = _mm512_maskz_max_ps(kAll, doublings, _mm512_set1_ps(-40.0f));
  const __m512 shifted = _mm512_add_ps(power, _mm512_set1_ps(kShift));
  const __m512 part = _mm512_sub_ps(power, _mm512_sub_ps(shifted, _mm512_set1_ps(kShift)));
  constexpr float kSeries[] = {0.0013333558146428443f, 0.009618129107628477f, 0.05550410866482158f,
                               0.2402265069591007f, 0.6931471805599453f, 1.0f};
  __m512 y = _mm512_set1_ps(0.00015403530393381608f);
  for (const float coefficient : kSeries) {
    y = _mm512_add_ps(_mm512_mul_ps(y, part), _mm512_set1_ps(coefficient));
  }
  // Times a power of two: added to the exponent, which stays that of a normal number.
  const __m512i exponent = _mm512_maskz_slli_epi32(kAll, _mm512_castps_si512(shifted), 23);
  return _mm512_maskz_cvtps_epi32(kAll, _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(y), exponent)));
}

inline __m512i zero_beyond(AllLanes, __m512i x) { return x; }
inline __m512i zero_beyond(SomeLanes lanes, __m512i x) { return _mm512_maskz_mov_epi32(lanes, x); }

// Exponentials, or sums of two, as 64-bit numbers: the even lanes and the odd ones, added.
inline __m512i pairs_added(__m512i x) {
  return _mm512_add_epi64(_mm512_maskz_mov_epi32(0x5555, x), _mm512_maskz_srli_epi64(0xff, x, 32));
}

// What is known of a row of floats when all have been seen.
class FloatRange {
 public:
  // A maximum gives its second operand where one is NaN.
  inline void add(__m512 x) { add(x, x); }
  inline void add(__m512 x, __m512 z) {
    largest_ = _mm512_maskz_max_ps(kAll, z, _mm512_maskz_max_ps(kAll, x, largest_));
    nan_ |= _mm512_cmp_ps_mask(x, z, _CMP_UNORD_Q);
  }
  inline float largest() const {
    const __m256 upper = _mm256_castsi256_ps(_mm512_maskz_extracti64x4_epi64(0xff, _mm512_castps_si512(largest_), 1));
    const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(largest_), upper);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
  }
  // As softmax_factor tells rows apart.
  inline KeyRange keys(float largest) const {
    if (nan_ != 0 || largest == INFINITY) return {INT32_MIN, INT32_MAX};
    const int32_t key = largest == -INFINITY ? kKeyOfMinusInfinity : 0;
    return {key, key};
  }

 private:
  __m512 largest_ = _mm512_set1_ps(-INFINITY);
  __mmask16 nan_ = 0;
};

// The vectors of a row of `count` values: the last one ends with the row, so it overlaps the one before; `fresh` are its
// lanes that no other vector holds. A row of less than 16 values has one vector, partly filled.
template <int kVectors, typename Lanes>
struct RowVectors {
  Lanes lanes;
  __mmask16 fresh;
  int64_t last;

  int64_t at(int v) const { return v + 1 < kVectors ? v * kVector : last; }
  __mmask16 counted(int v) const { return v + 1 < kVectors ? kAll : fresh; }
};

// How far the values of a row lie below its largest one.
template <int kVectors, typename Lanes>
inline KeyRange distances(const RowVectors<kVectors, Lanes>& row, const float* x, float, __m512* below) {
  for (int v = 0; v < kVectors; ++v) below[v] = load_floats(x + row.at(v), row.lanes);
  if constexpr (kVectors == 1) below[0] = _mm512_mask_mov_ps(_mm512_set1_ps(x[0]), row.fresh, below[0]);
  FloatRange range;
  for (int v = 0; v < kVectors; v += 2) range.add(below[v], below[v + 1 < kVectors ? v + 1 : v]);
  const float largest = range.largest();
  for (int v = 0; v < kVectors; ++v) below[v] = _mm512_sub_ps(below[v], _mm512_set1_ps(largest));
  return range.keys(largest);
}

template <int kVectors, typename Lanes, typename Q>
inline KeyRange distances(const RowVectors<kVectors, Lanes>& row, const Q* x, float scale, __m512* below) {
  __m512i q[kVectors], largest = _mm512_set1_epi32(x[0]);
  for (int v = 0; v < kVectors; ++v) {
    q[v] = load_quantized(x + row.at(v), row.lanes);
    if constexpr (kVectors == 1) q[v] = _mm512_mask_mov_epi32(largest, row.fresh, q[v]);
    largest = _mm512_maskz_max_epi32(kAll, largest, q[v]);
  }
  const __m512i most = _mm512_set1_epi32(largest_of(largest));
  for (int v = 0; v < kVectors; ++v) {
    const __m512 steps = _mm512_maskz_cvtepi32_ps(kAll, _mm512_sub_epi32(q[v], most));
    below[v] = _mm512_mul_ps(steps, _mm512_set1_ps(scale));
  }
  return {0, 0};
}

// kRows of them, each step for all before the next one.
template <typename T, int kRows, int kVectors, typename Lanes>
inline void rows_at(const SoftmaxArgs& args, int64_t row, const RowVectors<kVectors, Lanes>& vectors,
                    const StoredVectors& output) {
  __m512 below[kRows][kVectors], factor[kRows];
  __m512i steps[kRows][kVectors], sum[kRows];
  KeyRange keys[kRows];
  for (int r = 0; r < kRows; ++r) {
    const T* x = static_cast<const T*>(args.x) + (row + r) * args.columns;
    keys[r] = distances(vectors, x, args.x_scale, below[r]);
  }
  for (int r = 0; r < kRows; ++r) {
    sum[r] = _mm512_setzero_si512();
    for (int v = 0; v < kVectors; v += 2) {
      steps[r][v] = exp_vector(below[r][v]);
      __m512i both = _mm512_maskz_mov_epi32(vectors.counted(v), steps[r][v]);
      if (v + 1 < kVectors) {
        steps[r][v + 1] = exp_vector(below[r][v + 1]);
        both = _mm512_add_epi32(both, _mm512_maskz_mov_epi32(vectors.counted(v + 1), steps[r][v + 1]));
      }
      sum[r] = _mm512_add_epi64(sum[r], pairs_added(both));
    }
  }
  for (int r = 0; r < kRows; ++r) {
    factor[r] = _mm512_set1_ps(softmax_factor(sum_of_lanes(sum[r]), keys[r], args.safe));
  }
  for (int r = 0; r < kRows; ++r) {
    __m512 shares[kVectors];
    for (int v = 0; v < kVectors; ++v) shares[v] = _mm512_mul_ps(_mm512_maskz_cvtepi32_ps(kAll, steps[r][v]), factor[r]);
    if constexpr (kVectors == 1) {
      output.template store<1>(shares, (row + r) * args.columns, args.columns);
    } else {
      output.template store_overlapping<kVectors>(shares, (row + r) * args.columns, vectors.last);
    }
  }
}

template <typename T, int kVectors, typename Lanes>
void short_rows(const SoftmaxArgs& args, int64_t begin, int64_t end, const RowVectors<kVectors, Lanes>& vectors) {
  constexpr int kTogether = 4;
  const StoredVectors output(args.y, args.y_qparams);
  int64_t row = begin;
  for (; row + kTogether <= end; row += kTogether) rows_at<T, kTogether>(args, row, vectors, output);
  for (; row < end; ++row) rows_at<T, 1>(args, row, vectors, output);
}

template <typename T>
void short_rows(const SoftmaxArgs& args, int64_t begin, int64_t end) {
  const int64_t last = args.columns - kVector;
  if (last < 0) {
    const __mmask16 lanes = static_cast<__mmask16>((1 << args.columns) - 1);
    return short_rows<T>(args, begin, end, RowVectors<1, SomeLanes>{lanes, lanes, 0});
  }
  const int64_t repeated = (kVector - args.columns % kVector) % kVector;
  const __mmask16 fresh = static_cast<__mmask16>(0xffff << repeated);
  switch ((args.columns + kVector - 1) / kVector) {
    case 1: return short_rows<T>(args, begin, end, RowVectors<1, AllLanes>{{}, fresh, last});
    case 2: return short_rows<T>(args, begin, end, RowVectors<2, AllLanes>{{}, fresh, last});
    case 3: return short_rows<T>(args, begin, end, RowVectors<3, AllLanes>{{}, fresh, last});
    default: return short_rows<T>(args, begin, end, RowVectors<4, AllLanes>{{}, fresh, last});
  }
}

// How far values of a row lie below its largest one.
template <typename T>
class Below {
 public:
  Below() = default;
  Below(const T* x, int64_t count, float scale) : x_(x), scale_(_mm512_set1_ps(scale)) {
    __m512i largest = _mm512_set1_epi32(x[0]);
    for (int64_t i = 0; i + kVector <= count; i += kVector) {
      largest = _mm512_maskz_max_epi32(kAll, largest, load_quantized(x + i, AllLanes()));
    }
    // The last one overlaps the one before: a long row has more than 16 values.
    largest = _mm512_maskz_max_epi32(kAll, largest, load_quantized(x + count - kVector, AllLanes()));
    largest_ = _mm512_set1_epi32(largest_of(largest));
  }
  template <typename Lanes>
  inline __m512 operator()(int64_t i, Lanes lanes) const {
    const __m512i steps = _mm512_sub_epi32(load_quantized(x_ + i, lanes), largest_);
    return _mm512_mul_ps(_mm512_maskz_cvtepi32_ps(kAll, steps), scale_);
  }
  KeyRange keys() const { return {0, 0}; }

 private:
  const T* x_;
  __m512 scale_;
  __m512i largest_;
};

template <>
class Below<float> {
 public:
  Below() = default;
  Below(const float* x, int64_t count, float) : x_(x) {
    FloatRange range;
    for (int64_t i = 0; i + kVector <= count; i += kVector) range.add(load_floats(x + i, AllLanes()));
    range.add(load_floats(x + count - kVector, AllLanes()));
    const float largest = range.largest();
    keys_ = range.keys(largest);
    largest_ = _mm512_set1_ps(largest);
  }
  template <typename Lanes>
  inline __m512 operator()(int64_t i, Lanes lanes) const {
    return _mm512_sub_ps(load_floats(x_ + i, lanes), largest_);
  }
  KeyRange keys() const { return keys_; }

 private:
  const float* x_;
  __m512 largest_;
  KeyRange keys_;
};

// Exponentials of a row, and their sum.
template <typename T>
inline int64_t exponentials(const Below<T>& below, int32_t* steps, int64_t count) {
  __m512i sum = _mm512_setzero_si512();
  for_each_vector(count, [&](int64_t i, auto lanes) {
    const __m512i found = exp_vector(below(i, lanes));
    store_integers(steps + i, lanes, found);
    sum = _mm512_add_epi64(sum, pairs_added(zero_beyond(lanes, found)));
  });
  return sum_of_lanes(sum);
}

inline void store_shares(const StoredVectors& output, int64_t at, const int32_t* steps, float factor, int64_t count) {
  const auto share = [&](int64_t i, auto lanes) {
    return _mm512_mul_ps(_mm512_maskz_cvtepi32_ps(kAll, load_integers(steps + i, lanes)), _mm512_set1_ps(factor));
  };
  int64_t i = 0;
  for (; i + 4 * kVector <= count; i += 4 * kVector) {
    const __m512 four[] = {share(i, AllLanes()), share(i + kVector, AllLanes()), share(i + 2 * kVector, AllLanes()),
                           share(i + 3 * kVector, AllLanes())};
    output.store<4>(four, at + i, 4 * kVector);
  }
  for_each_vector(count - i, [&](int64_t k, auto lanes) {
    const __m512 one[] = {share(i + k, lanes)};
    output.store<1>(one, at + i + k, count - i - k < kVector ? count - i - k : kVector);
  });
}

// While a row waits for its largest value or its sum, others are under way.
template <typename T>
void long_rows(const SoftmaxArgs& args, int64_t begin, int64_t end, int32_t* steps) {
  const StoredVectors output(args.y, args.y_qparams);
  const int64_t columns = args.columns, together = rows_together(columns);
  const T* x = static_cast<const T*>(args.x);
  Below<T> below[kRowsTogether];
  float factor[kRowsTogether];
  for (int64_t first = begin; first < end; first += together) {
    const int64_t count = end - first < together ? end - first : together;
    for (int64_t r = 0; r < count; ++r) below[r] = Below<T>(x + (first + r) * columns, columns, args.x_scale);
    for (int64_t r = 0; r < count; ++r) {
      factor[r] = softmax_factor(exponentials(below[r], steps + r * columns, columns), below[r].keys(), args.safe);
    }
    for (int64_t r = 0; r < count; ++r) store_shares(output, (first + r) * columns, steps + r * columns, factor[r], columns);
  }
}

template <typename T>
void rows(const SoftmaxArgs& args, int64_t begin, int64_t end, int32_t* steps) {
  args.columns <= kShortRow ? short_rows<T>(args, begin, end) : long_rows<T>(args, begin, end, steps);
}
#else
FXQ_ONE_LOOP KeyRange keys_of(const float* FXQ_RESTRICT x, int64_t count) {
  int32_t smallest = INT32_MAX, largest = INT32_MIN;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t key = key_of(x[i]);
    smallest = key < smallest ? key : smallest;
    largest = key > largest ? key : largest;
  }
  return {smallest, largest};
}

struct Exponential {
  const float* FXQ_RESTRICT x;
  int32_t* FXQ_RESTRICT steps;
  float largest;

  void operator()(int64_t i) const { steps[i] = exp_steps(x[i] - largest); }
};

struct Store {
  const int32_t* FXQ_RESTRICT steps;
  uint8_t* FXQ_RESTRICT y;
  float factor;
  OutputQParams y_qparams;

  void operator()(int64_t i) const { y[i] = requantize(static_cast<float>(steps[i]) * factor, y_qparams); }
};

FXQ_ONE_LOOP int64_t sum_of(const int32_t* FXQ_RESTRICT steps, int64_t count) {
  int64_t sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += steps[i];
  return sum;
}

// From the exponentials of a row to its shares of 1.
void store(const SoftmaxArgs& args, int64_t row, const int32_t* steps, const KeyRange& keys) {
  const float factor = softmax_factor(sum_of(steps, args.columns), keys, args.safe);
  for_each_in_row(args.columns, Store{steps, args.y + row * args.columns, factor, args.y_qparams});
}

void float_row(const SoftmaxArgs& args, int64_t row, int32_t* steps) {
  const float* x = static_cast<const float*>(args.x) + row * args.columns;
  const KeyRange keys = keys_of(x, args.columns);
  for_each_in_row(args.columns, Exponential{x, steps, of_key(keys.largest)});
  store(args, row, steps, keys);
}

template <typename Q>
void quantized_row(const SoftmaxArgs& args, int64_t row, int32_t* FXQ_RESTRICT steps,
                const int32_t* FXQ_RESTRICT table) {
  const Q* FXQ_RESTRICT x = static_cast<const Q*>(args.x) + row * args.columns;
  Q largest = x[0];
  for (int64_t i = 1; i < args.columns; ++i) largest = x[i] > largest ? x[i] : largest;
  for (int64_t i = 0; i < args.columns; ++i) steps[i] = table[largest - x[i]];
  store(args, row, steps, {0, 0});
}
#endif

}  // namespace

void softmax_loop(const SoftmaxArgs& args, int64_t begin, int64_t end, int32_t* steps) {
#if defined(__AVX512BW__)
  args.type == RowType::kFloat   ? rows<float>(args, begin, end, steps)
  : args.type == RowType::kUint8 ? rows<uint8_t>(args, begin, end, steps)
                                 : rows<int8_t>(args, begin, end, steps);
#else
  if (args.type == RowType::kFloat) {
    for (int64_t row = begin; row < end; ++row) float_row(args, row, steps);
    return;
  }
  int32_t table[256];  // by the distance from the row's largest
  for (int32_t i = 0; i < 256; ++i) table[i] = exp_steps(static_cast<float>(-i) * args.x_scale);
  for (int64_t row = begin; row < end; ++row) {
    args.type == RowType::kUint8 ? quantized_row<uint8_t>(args, row, steps, table)
                                 : quantized_row<int8_t>(args, row, steps, table);
  }
#endif
}

}  // namespace FXQ_ISA
}  // namespace fxquant
