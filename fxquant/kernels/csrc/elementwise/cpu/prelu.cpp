#include "elementwise/cpu/elementwise.h"
#include "elementwise/prelu.h"

namespace fxquant {
namespace {

Tensor prelu_cpu(const PReluCall& c) {
  const Elementwise e = prepare_prelu(c);
  return elementwise_cpu(
      c.x, c.slope, e,
      [](const ElementwiseArgs& args, int64_t begin, int64_t end, void*) { FXQ_LOOP(prelu_loop)(args, begin, end); });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fxquant, CPU, m) { m.impl("prelu", FXQ_KERNEL(prelu_cpu)); }

}  // namespace fxquant
