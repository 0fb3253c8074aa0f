// Moving averages of ranges, and from a range to scale and zero point: fxquant/kernels/fake_quantize/affine_qparams.py and
// fxquant/kernels/fake_quantize/moving_average_qparams.py operation by operation, in float32.
#pragma once
#include "math/affine.h"
#include "math/histogram.h"

namespace fxquant {

struct Range {
  float low;   // inf and -inf before the first finite value
  float high;
};

// The range of values whose smallest and largest key these are; low > high: nothing was seen.
FXQ_HOST_DEVICE Range range_of_keys(int32_t low, int32_t high) {
  const bool seen = low <= high;
  return {seen ? of_key(low) : float_of_bits(kInfinity), seen ? of_key(high) : float_of_bits(kInfinity | 0x80000000u)};
}

// Whether no infinity and no NaN is among these values.
FXQ_HOST_DEVICE bool finite_keys(int32_t low, int32_t high) {
  return low >= key_of(float_of_bits((kInfinity - 1) | 0x80000000u)) && high <= key_of(float_of_bits(kInfinity - 1));
}

struct QParamsOptions {
  float eps;
  float averaging;  // weight of the newest batch
  int32_t quant_min;
  int32_t quant_max;
  int32_t middle;  // zero point of symmetric qparams
  bool symmetric;
};

struct ChosenQParams {
  float scale;
  int32_t zero_point;
};

FXQ_HOST_DEVICE Range blend(const Range& before, const Range& batch, float averaging) {
  if (!(batch.low <= batch.high)) return before;
  if (!(before.low <= before.high)) return batch;
  return {before.low + averaging * (batch.low - before.low), before.high + averaging * (batch.high - before.high)};
}

// A range that holds nothing gives the smallest scale.
FXQ_HOST_DEVICE ChosenQParams choose_qparams(const Range& range, const QParamsOptions& choice) {
  const float low = range.low < 0 ? range.low : 0.0f;
  const float high = range.high > 0 ? range.high : 0.0f;
  const float steps = static_cast<float>(static_cast<int64_t>(choice.quant_max) - choice.quant_min);
  if (choice.symmetric) {
    const float reach = -low > high ? -low : high;
    const float scale = reach / (steps / 2);
    return {scale > choice.eps ? scale : choice.eps, choice.middle};
  }
  const float width = high - low;
  const float wide = is_finite(width) ? width / steps : high / steps - low / steps;
  const float scale = wide > choice.eps ? wide : choice.eps;
  constexpr float kFar = 8589934592.0f;  // 2^33; a range that is no finite one may lie further below 0, or nowhere
  const float below = round_even(low / scale);
  const int64_t zero_point = choice.quant_min - static_cast<int64_t>(below > -kFar ? below : -kFar);
  const int64_t at_least = zero_point > choice.quant_min ? zero_point : choice.quant_min;
  return {scale, static_cast<int32_t>(at_least < choice.quant_max ? at_least : choice.quant_max)};
}

}  // namespace fxquant
