// Runs what common/elementwise.h prepared: one thread per element of the result.
#pragma once
#include "../common/elementwise.h"
#include "launch.h"

namespace fxquant {

template <typename Q>
struct AddBytes {
  __device__ static float real(Q a, Q b, const Elementwise::Numbers& n) {
    return dequantize(a, n.a_scale, n.a_zero_point) + dequantize(b, n.b_scale, n.b_zero_point);
  }
};

template <typename Q>
struct MulBytes {
  __device__ static float real(Q a, Q b, const Elementwise::Numbers& n) {
    return static_cast<float>((a - n.a_zero_point) * (b - n.b_zero_point)) * (n.a_scale * n.b_scale);
  }
};

template <typename Q, typename Op>
struct ElementwiseKernel {
  const Q* a;
  const Q* b;
  uint8_t* y;
  StridedPair shape;
  Elementwise::Numbers numbers;

  __device__ void operator()(int64_t i) const {
    int64_t at = 0;
    int64_t bt = 0;
    int64_t rest = i;
    for (int d = shape.dims - 1; d >= 0; --d) {
      const int64_t index = rest % shape.size[d];
      rest /= shape.size[d];
      at += index * shape.a_stride[d];
      bt += index * shape.b_stride[d];
    }
    y[i] = requantize(Op::real(a[at], b[bt], numbers), numbers.grid);
  }
};

template <template <typename> typename Op>
Tensor elementwise_cuda(const Tensor& a, const Tensor& b, const Elementwise& e) {
  const auto run = [&](auto q) {
    using Q = decltype(q);
    for_each(e.y, e.y.numel(),
             ElementwiseKernel<Q, Op<Q>>{static_cast<const Q*>(a.const_data_ptr()),
                                         static_cast<const Q*>(b.const_data_ptr()),
                                         static_cast<uint8_t*>(e.y.mutable_data_ptr()), e.shape, e.numbers});
  };
  a.scalar_type() == ScalarType::Char ? run(int8_t{}) : run(uint8_t{});
  return e.y;
}

}  // namespace fxquant
