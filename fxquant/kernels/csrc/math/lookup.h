// Float values of a quantized table: qparams for each row, whose zero point may be a float, and two values in a byte.
#pragma once
#include "math/affine.h"

namespace fxquant {

// Both factors are exact in double where the zero point is a whole number, so this is then the float32 product of the
// exact difference; otherwise the difference is no float32, and would be rounded before the product.
FXQ_HOST_DEVICE float dequantize_float_zero_point(int32_t q, float scale, float zero_point) {
  return static_cast<float>((static_cast<double>(q) - static_cast<double>(zero_point)) * static_cast<double>(scale));
}

// A value of 4 bits: unsigned, or in two's complement.
FXQ_HOST_DEVICE int32_t nibble(int32_t bits, bool is_signed) { return is_signed ? (bits ^ 8) - 8 : bits; }

}  // namespace fxquant
