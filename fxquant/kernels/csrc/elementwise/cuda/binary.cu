#include "elementwise/cuda/elementwise.h"

namespace fxquant {
namespace {

struct AddBytes {
  static FXQ_MEMBER float float_value(int32_t a, int32_t b, const Elementwise::Numbers& n) {
    return dequantize(a, n.a_scale, n.a_zero_point) + dequantize(b, n.b_scale, n.b_zero_point);
  }
};

struct MulBytes {
  static FXQ_MEMBER float float_value(int32_t a, int32_t b, const Elementwise::Numbers& n) {
    return static_cast<float>((a - n.a_zero_point) * (b - n.b_zero_point)) * (n.a_scale * n.b_scale);
  }
};

Tensor add_cuda(const BinaryCall& c) {
  return elementwise_cuda<AddBytes>(c.a, c.b, prepare_binary("fxquant::add", c));
}

Tensor mul_cuda(const BinaryCall& c) {
  return elementwise_cuda<MulBytes>(c.a, c.b, prepare_binary("fxquant::mul", c));
}

}  // namespace

FXQ_CUDA_LIBRARY(m) {
  m.impl("add", FXQ_KERNEL(add_cuda));
  m.impl("mul", FXQ_KERNEL(mul_cuda));
}

}  // namespace fxquant
