// Integer arithmetic modulo 2^32 or 2^64, as vector instructions do it: parts of a sum may overflow, which C++ leaves
// undefined for signed integers.
#pragma once
#include "math/affine.h"

namespace fxquant {

FXQ_HOST_DEVICE int32_t add_modulo(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
}

FXQ_HOST_DEVICE int64_t add_modulo(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}

FXQ_HOST_DEVICE int32_t subtract_modulo(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) - static_cast<uint32_t>(b));
}

FXQ_HOST_DEVICE int32_t multiply_modulo(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) * static_cast<uint32_t>(b));
}

}  // namespace fxquant
