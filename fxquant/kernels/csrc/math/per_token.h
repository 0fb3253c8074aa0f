// Linear layers whose input has a scale and a zero point for each row: from the sum of a row and a channel to the value.
#pragma once
#include "math/modulo.h"

namespace fxquant {

// `sum` adds x * w. Of (x - zero_point) * w it is to be: weight_sum adds the w of the channel. weight_scale is that of the
// channel, and x_scale that of the row.
FXQ_HOST_DEVICE float per_token_value(int32_t sum, float x_scale, int32_t zero_point, int32_t weight_sum,
                                      float weight_scale) {
  const int32_t exact = subtract_modulo(sum, multiply_modulo(zero_point, weight_sum));
  return static_cast<float>(exact) * (x_scale * weight_scale);
}

}  // namespace fxquant
