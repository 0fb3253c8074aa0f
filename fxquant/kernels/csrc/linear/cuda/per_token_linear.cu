#include "linear/per_token_linear.h"

#include "conv/cuda/conv.h"

namespace fxquant {
namespace {

Tensor per_token_linear_cuda(const PerTokenLinearCall& call) { return conv_cuda(checked_per_token_linear(call)); }

}  // namespace

FXQ_CUDA_LIBRARY(m) { m.impl("per_token_linear", FXQ_KERNEL(per_token_linear_cuda)); }

}  // namespace fxquant
