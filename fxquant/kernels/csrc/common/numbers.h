// Element types of tensors, and integer limits as floating point numbers.
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>

#include "common/checks.h"
#include "common/types.h"

namespace fxquant {

inline Float float_type(const char* op, const char* argument, ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Float: return Float::kFloat;
    case ScalarType::Double: return Float::kDouble;
    case ScalarType::Half: return Float::kHalf;
    case ScalarType::BFloat16: return Float::kBFloat16;
    default: fail_dtype(op, argument, dtype, "float32, float64, float16 or bfloat16");
  }
}

inline Integer integer_type(const char* op, const char* argument, ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Byte: return Integer::kUint8;
    case ScalarType::Char: return Integer::kInt8;
    case ScalarType::Short: return Integer::kInt16;
    case ScalarType::Int: return Integer::kInt32;
    default: fail_dtype(op, argument, dtype, "uint8, int8, int16 or int32");
  }
}

// The nearest Real of a limit that does not lie beyond it, so that a clamped value fits its integer type. Direction: 1
// for a lower limit, -1 for an upper one.
template <typename Real>
Real within(int64_t limit, int direction) {
  const Real real = static_cast<Real>(limit);
  const double inwards = (static_cast<double>(real) - static_cast<double>(limit)) * direction;
  return inwards < 0 ? std::nextafter(real, direction * std::numeric_limits<Real>::infinity()) : real;
}

}  // namespace fxquant
