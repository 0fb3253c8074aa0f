#include <torch/csrc/stable/library.h>

#include "elementwise/cpu/elementwise.h"
#include "elementwise/prelu.h"

namespace fxquant {
namespace {

Tensor prelu_cpu(const Tensor& x, double x_scale, int64_t x_zero_point, const Tensor& slope, double scale,
                 int64_t zero_point, int64_t quant_min, int64_t quant_max) {
  const Elementwise e = prepare_prelu(x, x_scale, x_zero_point, slope, scale, zero_point, quant_min, quant_max);
  return elementwise_cpu(
      x, slope, e,
      [](const ElementwiseArgs& args, int64_t begin, int64_t end, void*) { FXQ_LOOP(prelu_loop)(args, begin, end); });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fxquant, CPU, m) { m.impl("prelu", TORCH_BOX(&prelu_cpu)); }

}  // namespace fxquant
