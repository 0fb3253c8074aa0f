#include "pool/cuda/average.h"

namespace fxquant {
namespace {

Tensor mean_cuda(const MeanCall& c) {
  return average_cuda(prepare_mean(c));
}

}  // namespace

FXQ_CUDA_LIBRARY(m) { m.impl("mean", FXQ_KERNEL(mean_cuda)); }

}  // namespace fxquant
