// Computes softmax of rows that lie one after the other, [rows][columns]. A task is a stretch of rows:
//
//   for row:                           # parallel
//       for column: the largest value
//       for column: scratch = e^(x - largest) in multiples of 2^-30; of quantized rows from a table of 256
//       for column: the sum of scratch, as an integer: exact
//       for column: divide by the sum, round, clamp, store
#include "norm/cpu/loops/softmax.h"

#include "cpu/loops/blocks.h"
#include "cpu/loops/rows.h"
#include "math/histogram.h"
#include "math/softmax.h"

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

}  // namespace

void softmax_loop(const SoftmaxArgs& args, int64_t begin, int64_t end, int32_t* steps) {
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
