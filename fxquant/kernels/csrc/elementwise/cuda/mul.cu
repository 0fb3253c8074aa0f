#include <torch/csrc/stable/library.h>

#include "elementwise/cuda/elementwise.h"

namespace fxquant {
namespace {

struct MulBytes {
  static FXQ_MEMBER float real(int32_t a, int32_t b, const Elementwise::Numbers& n) {
    return static_cast<float>((a - n.a_zero_point) * (b - n.b_zero_point)) * (n.a_scale * n.b_scale);
  }
};

Tensor mul_cuda(const Tensor& a, double a_scale, int64_t a_zero_point, const Tensor& b, double b_scale,
               int64_t b_zero_point, double scale, int64_t zero_point, int64_t quant_min, int64_t quant_max) {
  return elementwise_cuda<MulBytes>(
      a, b, prepare_elementwise("fxquant::mul", a, a_scale, a_zero_point, b, b_scale, b_zero_point, scale, zero_point,
                                quant_min, quant_max));
}

}  // namespace

FXQ_CUDA_LIBRARY(m) { m.impl("mul", TORCH_BOX(&mul_cuda)); }

}  // namespace fxquant
