#include "elementwise/cpu/elementwise.h"

namespace fxquant {
namespace {

Tensor add_cpu(const BinaryCall& c) {
  return elementwise_cpu(
      c.a, c.b, prepare_binary("fxquant::add", c),
      [](const ElementwiseArgs& args, int64_t begin, int64_t end, void*) { FXQ_LOOP(add_loop)(args, begin, end); });
}

Tensor mul_cpu(const BinaryCall& c) {
  return elementwise_cpu(
      c.a, c.b, prepare_binary("fxquant::mul", c),
      [](const ElementwiseArgs& args, int64_t begin, int64_t end, void*) { FXQ_LOOP(mul_loop)(args, begin, end); });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fxquant, CPU, m) {
  m.impl("add", FXQ_KERNEL(add_cpu));
  m.impl("mul", FXQ_KERNEL(mul_cpu));
}

}  // namespace fxquant
