#include <torch/csrc/stable/library.h>

#include "pool/cuda/average.h"

namespace fxquant {
namespace {

Tensor adaptive_avg_pool2d_cuda(const Tensor& x, const std::vector<int64_t>& output_size, double x_scale,
                               int64_t x_zero_point, double scale, int64_t zero_point, int64_t quant_min,
                               int64_t quant_max) {
  return average_cuda(prepare_adaptive_avg_pool2d(x, output_size, x_scale, x_zero_point, scale, zero_point, quant_min,
                                                 quant_max));
}

}  // namespace

FXQ_CUDA_LIBRARY(m) { m.impl("adaptive_avg_pool2d", TORCH_BOX(&adaptive_avg_pool2d_cuda)); }

}  // namespace fxquant
