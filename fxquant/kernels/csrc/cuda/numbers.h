// Element types inside kernels: how each is read and written, and the type that its arithmetic is in.
#pragma once
#include "cuda/host_device.h"
#include "math/half.h"

namespace fxquant {

template <typename T>
struct Number {
  using Real = T;
  static FXQ_MEMBER T load(const T& x) { return x; }
  static FXQ_MEMBER void store(T real, T& x) { x = real; }
};

template <Float type>
struct Number<Short<type>> {
  using Real = float;
  static FXQ_MEMBER float load(const Short<type>& x) { return to_float(x); }
  static FXQ_MEMBER void store(float real, Short<type>& x) { from_float(real, x); }
};

// Calls f.template go<T>() for the element type T of a name.
template <typename F>
void with_float(Float type, const F& f) {
  switch (type) {
    case Float::kFloat: return f.template go<float>();
    case Float::kDouble: return f.template go<double>();
    case Float::kHalf: return f.template go<Half>();
    case Float::kBFloat16: return f.template go<BFloat16>();
  }
}

template <typename F>
void with_integer(Integer type, const F& f) {
  switch (type) {
    case Integer::kUint8: return f.template go<uint8_t>();
    case Integer::kInt8: return f.template go<int8_t>();
    case Integer::kInt16: return f.template go<int16_t>();
    case Integer::kInt32: return f.template go<int32_t>();
  }
}

}  // namespace fxquant
