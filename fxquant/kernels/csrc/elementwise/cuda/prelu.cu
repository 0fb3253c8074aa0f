#include "elementwise/cuda/elementwise.h"
#include "elementwise/prelu.h"
#include "math/prelu.h"

namespace fxquant {
namespace {

struct PRelu {
  static FXQ_MEMBER float float_value(int32_t x, float slope, const Elementwise::Numbers& n) {
    return prelu(dequantize(x, n.a_scale, n.a_zero_point), slope);
  }
};

Tensor prelu_cuda(const PReluCall& c) {
  const Elementwise e = prepare_prelu(c);
  const bool is_signed = c.x.scalar_type() == ScalarType::Char;
  is_signed ? run_elementwise<int8_t, float, PRelu>(c.x, c.slope, e)
            : run_elementwise<uint8_t, float, PRelu>(c.x, c.slope, e);
  return e.y;
}

}  // namespace

FXQ_CUDA_LIBRARY(m) { m.impl("prelu", FXQ_KERNEL(prelu_cuda)); }

}  // namespace fxquant
