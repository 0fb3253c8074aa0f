// Normalizes rows that lie one after the other, [rows][columns]. A task is a stretch of rows:
//
//   for row:                           # parallel
//       for column: the largest magnitude              # of float rows, which gives the exponent k
//       for column: scratch = round(x * 2^k), and the sums of that and of its squares, as integers: exact
//       for column: subtract the mean, multiply by weight / deviation, add bias, round, clamp, store
#include "norm/cpu/loops/layer_norm.h"

#include "cpu/loops/blocks.h"
#include "math/layer_norm.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

struct Sums {
  int64_t values;
  int64_t squares;
};

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
  for (int64_t row = begin; row < end; ++row) {
    const Moments m = args.type == RowType::kFloat   ? float_row(args, row, steps)
                      : args.type == RowType::kUint8 ? quantized_row<uint8_t>(args, row, steps)
                                                     : quantized_row<int8_t>(args, row, steps);
    store(steps, args.weight, args.bias, args.y + row * args.columns, args.columns, m, args.y_qparams);
  }
}

}  // namespace FXQ_ISA
}  // namespace fxquant
