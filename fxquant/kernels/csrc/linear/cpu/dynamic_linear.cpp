#include "linear/dynamic_linear.h"

#include "conv/cpu/conv.h"
#include "quantize/cpu/quantize_per_token.h"

namespace fxquant {
namespace {

Tensor dynamic_linear_cpu(const DynamicLinearCall& call) {
  const DynamicLinear c(call, reads_steps);
  if (c.product.shape.empty()) return c.product.y;
  quantize_rows_cpu(c.input);
  return conv_cpu(c.product);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fxquant, CPU, m) { m.impl("dynamic_linear", FXQ_KERNEL(dynamic_linear_cpu)); }

}  // namespace fxquant
