#include "linear/per_token_linear.h"

#include "conv/cpu/conv.h"

namespace fxquant {
namespace {

Tensor per_token_linear_cpu(const PerTokenLinearCall& call) {
  return conv_cpu(checked_per_token_linear(call, reads_steps));
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fxquant, CPU, m) { m.impl("per_token_linear", FXQ_KERNEL(per_token_linear_cpu)); }

}  // namespace fxquant
