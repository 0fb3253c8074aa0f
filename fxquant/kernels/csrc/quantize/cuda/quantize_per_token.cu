#include "quantize/cuda/quantize_per_token.h"

#include <tuple>

namespace fxquant {
namespace {

std::tuple<Tensor, Tensor, Tensor> quantize_per_token_cuda(const QuantizePerTokenCall& call) {
  const QuantizePerToken c(call);
  quantize_rows_cuda(c);
  return {c.q, c.scale, c.zero_point};
}

}  // namespace

FXQ_CUDA_LIBRARY(m) { m.impl("quantize_per_token", FXQ_KERNEL(quantize_per_token_cuda)); }

}  // namespace fxquant
