#include <torch/csrc/stable/library.h>

#include "pool/cpu/average.h"

namespace fxquant {
namespace {

Tensor mean_cpu(const Tensor& x, const std::vector<int64_t>& dim, bool keepdim, double x_scale, int64_t x_zero_point,
                double scale, int64_t zero_point, int64_t quant_min, int64_t quant_max) {
  return average_cpu(
      prepare_mean(x, dim, keepdim, x_scale, x_zero_point, scale, zero_point, quant_min, quant_max));
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fxquant, CPU, m) { m.impl("mean", TORCH_BOX(&mean_cpu)); }

}  // namespace fxquant
