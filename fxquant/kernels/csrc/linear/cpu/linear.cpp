#include "conv/cpu/conv.h"
#include "linear/linear.h"

namespace fxquant {
namespace {

Tensor linear_cpu(const LinearCall& call) { return conv_cpu(checked_linear(call, reads_steps)); }

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fxquant, CPU, m) { m.impl("linear", FXQ_KERNEL(linear_cpu)); }

}  // namespace fxquant
