#include "conv/cuda/conv.h"
#include "linear/linear.h"

namespace fxquant {
namespace {

Tensor linear_cuda(const LinearCall& call) { return conv_cuda(checked_linear(call)); }

}  // namespace

FXQ_CUDA_LIBRARY(m) { m.impl("linear", FXQ_KERNEL(linear_cuda)); }

}  // namespace fxquant
