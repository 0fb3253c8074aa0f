#include <torch/csrc/stable/library.h>

#include "../common/prelu.h"
#include "../math/prelu.h"
#include "launch.h"

namespace fxquant {
namespace {

template <typename Q>
struct PRelu {
  const Q* x;
  const float* slope;
  uint8_t* y;
  StridedPair shape;
  Elementwise::Numbers numbers;

  __device__ void operator()(int64_t i) const {
    int64_t at = 0;
    int64_t bt = 0;
    int64_t rest = i;
    for (int d = shape.dims - 1; d >= 0; --d) {
      const int64_t index = rest % shape.size[d];
      rest /= shape.size[d];
      at += index * shape.a_stride[d];
      bt += index * shape.b_stride[d];
    }
    y[i] = requantize(prelu(dequantize(x[at], numbers.a_scale, numbers.a_zero_point), slope[bt]), numbers.grid);
  }
};

Tensor prelu_cuda(const Tensor& x, double x_scale, int64_t x_zero_point, const Tensor& slope, double scale,
                  int64_t zero_point, int64_t quant_min, int64_t quant_max) {
  const Elementwise e = prepare_prelu(x, x_scale, x_zero_point, slope, scale, zero_point, quant_min, quant_max);
  const auto run = [&](auto q) {
    using Q = decltype(q);
    for_each(e.y, e.y.numel(),
             PRelu<Q>{static_cast<const Q*>(x.const_data_ptr()), static_cast<const float*>(slope.const_data_ptr()),
                      static_cast<uint8_t*>(e.y.mutable_data_ptr()), e.shape, e.numbers});
  };
  x.scalar_type() == ScalarType::Char ? run(int8_t{}) : run(uint8_t{});
  return e.y;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fxquant, CUDA, m) { m.impl("prelu", TORCH_BOX(&prelu_cuda)); }

}  // namespace fxquant
