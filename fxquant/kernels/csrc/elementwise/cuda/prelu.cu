#include <torch/csrc/stable/library.h>

#include "elementwise/cuda/elementwise.h"
#include "elementwise/prelu.h"
#include "math/prelu.h"

namespace fxquant {
namespace {

struct PRelu {
  static FXQ_MEMBER float real(int32_t x, float slope, const Elementwise::Numbers& n) {
    return prelu(dequantize(x, n.a_scale, n.a_zero_point), slope);
  }
};

Tensor prelu_cuda(const Tensor& x, double x_scale, int64_t x_zero_point, const Tensor& slope, double scale,
                  int64_t zero_point, int64_t quant_min, int64_t quant_max) {
  const Elementwise e = prepare_prelu(x, x_scale, x_zero_point, slope, scale, zero_point, quant_min, quant_max);
  const bool is_signed = x.scalar_type() == ScalarType::Char;
  is_signed ? run_elementwise<int8_t, float, PRelu>(x, slope, e) : run_elementwise<uint8_t, float, PRelu>(x, slope, e);
  return e.y;
}

}  // namespace

FXQ_CUDA_LIBRARY(m) { m.impl("prelu", TORCH_BOX(&prelu_cuda)); }

}  // namespace fxquant
