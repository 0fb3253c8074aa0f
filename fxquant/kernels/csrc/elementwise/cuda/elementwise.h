// Runs what elementwise/elementwise.h prepared, for bytes with a second factor of any type.
#pragma once
#include "cuda/launch.h"
#include "elementwise/elementwise.h"

namespace fxquant {

template <typename A, typename B, typename Op>
struct ElementwiseKernel {
  const A* a;
  const B* b;
  uint8_t* y;
  StridedPair shape;
  Elementwise::Numbers numbers;

  static constexpr int kPack = kPackBytes / sizeof(B);
  // Only where both lie as the result does.
  bool aligned() const {
    return shape.dims == 1 && shape.a_stride[0] == 1 && shape.b_stride[0] == 1 && starts_pack<kPack>(a) &&
           starts_pack<kPack>(b) && starts_pack<kPack>(y);
  }

  template <int N>
  FXQ_MEMBER void run(int64_t i) const {
    int64_t at = N > 1 ? i : 0;
    int64_t bt = N > 1 ? i : 0;
    int64_t rest = i;
    for (int d = shape.dims - 1; N == 1 && d >= 0; --d) {
      const int64_t index = rest % shape.size[d];
      rest /= shape.size[d];
      at += index * shape.a_stride[d];
      bt += index * shape.b_stride[d];
    }
    const Pack<A, N> left = load_pack<N>(a + at);
    const Pack<B, N> right = load_pack<N>(b + bt);
    Pack<uint8_t, N> out;
    for (int j = 0; j < N; ++j) out.at[j] = requantize(Op::float_value(left.at[j], right.at[j], numbers), numbers.y_qparams);
    store_pack(out, y + i);
  }
};

template <typename A, typename B, typename Op>
void run_elementwise(const Tensor& a, const Tensor& b, const Elementwise& e) {
  for_each_pack(e.y, e.y.numel(),
                ElementwiseKernel<A, B, Op>{static_cast<const A*>(a.const_data_ptr()),
                                            static_cast<const B*>(b.const_data_ptr()),
                                            static_cast<uint8_t*>(e.y.mutable_data_ptr()), e.shape, e.numbers});
}

// Of two tensors of bytes.
template <typename Op>
Tensor elementwise_cuda(const Tensor& a, const Tensor& b, const Elementwise& e) {
  const bool is_signed = a.scalar_type() == ScalarType::Char;
  is_signed ? run_elementwise<int8_t, int8_t, Op>(a, b, e) : run_elementwise<uint8_t, uint8_t, Op>(a, b, e);
  return e.y;
}

}  // namespace fxquant
