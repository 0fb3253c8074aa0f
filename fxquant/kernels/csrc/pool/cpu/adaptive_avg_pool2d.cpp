#include "pool/cpu/average.h"

namespace fxquant {
namespace {

Tensor adaptive_avg_pool2d_cpu(const AdaptiveAvgPool2dCall& c) {
  return average_cpu(prepare_adaptive_avg_pool2d(c));
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fxquant, CPU, m) { m.impl("adaptive_avg_pool2d", FXQ_KERNEL(adaptive_avg_pool2d_cpu)); }

}  // namespace fxquant
