#include "pool/cuda/average.h"

namespace fxquant {
namespace {

Tensor adaptive_avg_pool2d_cuda(const AdaptiveAvgPool2dCall& c) {
  return average_cuda(prepare_adaptive_avg_pool2d(c));
}

}  // namespace

FXQ_CUDA_LIBRARY(m) { m.impl("adaptive_avg_pool2d", FXQ_KERNEL(adaptive_avg_pool2d_cuda)); }

}  // namespace fxquant
