#include "softmax.h"

#include "../../math/histogram.h"
#include "../../math/softmax.h"
#include "blocks.h"

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

FXQ_ONE_LOOP int64_t exponentials(const float* FXQ_RESTRICT x, float largest, int32_t* FXQ_RESTRICT steps,
                                  int64_t count) {
  int64_t sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    steps[i] = exp_steps(x[i] - largest);
    sum += steps[i];
  }
  return sum;
}

FXQ_ONE_LOOP void store(const int32_t* FXQ_RESTRICT steps, uint8_t* FXQ_RESTRICT y, int64_t count, float factor,
                        const OutputGrid grid) {
  for (int64_t i = 0; i < count; ++i) y[i] = requantize(static_cast<float>(steps[i]) * factor, grid);
}

void real_row(const SoftmaxArgs& args, int64_t row, int32_t* steps) {
  const float* x = static_cast<const float*>(args.x) + row * args.columns;
  const KeyRange keys = keys_of(x, args.columns);
  const int64_t sum = exponentials(x, of_key(keys.largest), steps, args.columns);
  store(steps, args.y + row * args.columns, args.columns, softmax_factor(sum, keys, args.safe), args.grid);
}

template <typename Q>
void stored_row(const SoftmaxArgs& args, int64_t row, int32_t* FXQ_RESTRICT steps,
                const int32_t* FXQ_RESTRICT table) {
  const Q* FXQ_RESTRICT x = static_cast<const Q*>(args.x) + row * args.columns;
  Q largest = x[0];
  for (int64_t i = 1; i < args.columns; ++i) largest = x[i] > largest ? x[i] : largest;
  int64_t sum = 0;
  for (int64_t i = 0; i < args.columns; ++i) {
    steps[i] = table[largest - x[i]];
    sum += steps[i];
  }
  store(steps, args.y + row * args.columns, args.columns, softmax_factor(sum, {0, 0}, args.safe), args.grid);
}

}  // namespace

void softmax_loop(const SoftmaxArgs& args, int64_t begin, int64_t end, int32_t* steps) {
  if (args.type == RowType::kFloat) {
    for (int64_t row = begin; row < end; ++row) real_row(args, row, steps);
    return;
  }
  int32_t table[256];  // by the distance from the row's largest
  for (int32_t i = 0; i < 256; ++i) table[i] = exp_steps(static_cast<float>(-i) * args.x_scale);
  for (int64_t row = begin; row < end; ++row) {
    args.type == RowType::kUint8 ? stored_row<uint8_t>(args, row, steps, table)
                                 : stored_row<int8_t>(args, row, steps, table);
  }
}

}  // namespace FXQ_ISA
}  // namespace fxquant
