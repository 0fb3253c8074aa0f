#include "pool/cuda/average.h"

namespace fxquant {
namespace {

Tensor avg_pool2d_cuda(const AvgPool2dCall& c) {
  return average_cuda(prepare_avg_pool2d(c));
}

}  // namespace

FXQ_CUDA_LIBRARY(m) { m.impl("avg_pool2d", FXQ_KERNEL(avg_pool2d_cuda)); }

}  // namespace fxquant
