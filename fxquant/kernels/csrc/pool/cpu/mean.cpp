#include "pool/cpu/average.h"

namespace fxquant {
namespace {

Tensor mean_cpu(const MeanCall& c) {
  return average_cpu(prepare_mean(c));
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fxquant, CPU, m) { m.impl("mean", FXQ_KERNEL(mean_cpu)); }

}  // namespace fxquant
