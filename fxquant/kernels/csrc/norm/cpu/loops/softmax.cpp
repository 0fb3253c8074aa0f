// Computes softmax of rows that lie one after the other, [rows][columns]. A task is a stretch of rows:
//
//   for row:                           # parallel
//       for column: the largest value
//       for column: scratch = e^(x - largest) in multiples of 2^-30; of quantized rows from a table of 256
//       for column: the sum of scratch, as an integer: exact
//       for column: divide by the sum, round, clamp, store
//
// With AVX-512 a row of up to 64 values stays in registers all the way, so that several rows are under way at once; there
// the exponentials of quantized rows are computed as those of floats.
#include "norm/cpu/loops/softmax.h"

#include "cpu/loops/blocks.h"
#include "cpu/loops/rows.h"
#include "math/histogram.h"
#include "math/softmax.h"
#include "norm/cpu/loops/row_vectors.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

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

#if defined(__AVX512BW__)
constexpr int64_t kShortRow = 64;

// exp_steps of 16 values.
inline __m512i exp_vector(__m512 x) {
  const __m512 doublings = _mm512_mul_ps(x, _mm512_set1_ps(1.4426950408889634f));
  const __m512 power = _mm512_maskz_max_ps(kAll, doublings, _mm512_set1_ps(-40.0f));
  const __m512 whole = _mm512_maskz_roundscale_ps(kAll, power, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 part = _mm512_sub_ps(power, whole);
  constexpr float kSeries[] = {0.0013333558146428443f, 0.009618129107628477f, 0.05550410866482158f,
                               0.2402265069591007f, 0.6931471805599453f, 1.0f};
  __m512 y = _mm512_set1_ps(0.00015403530393381608f);
  for (const float coefficient : kSeries) {
    y = _mm512_add_ps(_mm512_mul_ps(y, part), _mm512_set1_ps(coefficient));
  }
  const __m512i exponent = _mm512_add_epi32(_mm512_maskz_cvtps_epi32(kAll, whole), _mm512_set1_epi32(kExpBits + 127));
  const __m512 scale = _mm512_castsi512_ps(_mm512_maskz_slli_epi32(kAll, exponent, 23));
  return _mm512_maskz_cvtps_epi32(kAll, _mm512_mul_ps(y, scale));
}

inline __m512i key_vector(__m512i bits) {
  const __m512i signs = _mm512_maskz_srai_epi32(kAll, bits, 31);
  return _mm512_xor_si512(bits, _mm512_and_si512(signs, _mm512_set1_epi32(0x7fffffff)));
}

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
  const __m512 first = _mm512_set1_ps(x[0]);
  __m512i smallest = key_vector(_mm512_castps_si512(first)), largest = smallest;
  for (int v = 0; v < kVectors; ++v) {
    below[v] = load_floats(x + row.at(v), row.lanes);
    if constexpr (kVectors == 1) below[v] = _mm512_mask_mov_ps(first, row.fresh, below[v]);
    const __m512i keys = key_vector(_mm512_castps_si512(below[v]));
    smallest = _mm512_maskz_min_epi32(kAll, smallest, keys);
    largest = _mm512_maskz_max_epi32(kAll, largest, keys);
  }
  const KeyRange range{smallest_of(smallest), largest_of(largest)};
  const __m512 most = _mm512_set1_ps(of_key(range.largest));
  for (int v = 0; v < kVectors; ++v) below[v] = _mm512_sub_ps(below[v], most);
  return range;
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
                    const StoredVectors& stored) {
  __m512 below[kRows][kVectors], factor[kRows];
  __m512i steps[kRows][kVectors], sum[kRows];
  KeyRange keys[kRows];
  for (int r = 0; r < kRows; ++r) {
    const T* x = static_cast<const T*>(args.x) + (row + r) * args.columns;
    keys[r] = distances(vectors, x, args.x_scale, below[r]);
  }
  for (int r = 0; r < kRows; ++r) {
    sum[r] = _mm512_setzero_si512();
    for (int v = 0; v < kVectors; ++v) {
      steps[r][v] = exp_vector(below[r][v]);
      sum[r] = _mm512_add_epi64(sum[r], halves_added(_mm512_maskz_mov_epi32(vectors.counted(v), steps[r][v])));
    }
  }
  for (int r = 0; r < kRows; ++r) {
    factor[r] = _mm512_set1_ps(softmax_factor(sum_of_lanes(sum[r]), keys[r], args.safe));
  }
  for (int r = 0; r < kRows; ++r) {
    uint8_t* y = args.y + (row + r) * args.columns;
    for (int v = 0; v < kVectors; ++v) {
      const __m512 share = _mm512_mul_ps(_mm512_maskz_cvtepi32_ps(kAll, steps[r][v]), factor[r]);
      stored.store(y + vectors.at(v), vectors.lanes, share);
    }
  }
}

template <typename T, int kVectors, typename Lanes>
void short_rows(const SoftmaxArgs& args, int64_t begin, int64_t end, const RowVectors<kVectors, Lanes>& vectors) {
  constexpr int kTogether = 4;
  const StoredVectors stored(args.y_qparams);
  int64_t row = begin;
  for (; row + kTogether <= end; row += kTogether) rows_at<T, kTogether>(args, row, vectors, stored);
  for (; row < end; ++row) rows_at<T, 1>(args, row, vectors, stored);
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
#endif

}  // namespace

void softmax_loop(const SoftmaxArgs& args, int64_t begin, int64_t end, int32_t* steps) {
#if defined(__AVX512BW__)
  if (args.columns <= kShortRow) {
    return args.type == RowType::kFloat   ? short_rows<float>(args, begin, end)
           : args.type == RowType::kUint8 ? short_rows<uint8_t>(args, begin, end)
                                          : short_rows<int8_t>(args, begin, end);
  }
#endif
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
}

}  // namespace FXQ_ISA
}  // namespace fxquant
