#include "pool/cpu/average.h"

namespace fxquant {
namespace {

Tensor avg_pool2d_cpu(const AvgPool2dCall& c) {
  return average_cpu(prepare_avg_pool2d(c));
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fxquant, CPU, m) { m.impl("avg_pool2d", FXQ_KERNEL(avg_pool2d_cpu)); }

}  // namespace fxquant
