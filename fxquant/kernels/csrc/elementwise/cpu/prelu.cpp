#include <torch/csrc/stable/library.h>

#include "cpu/launch.h"
#include "elementwise/cpu/loops/elementwise.h"
#include "elementwise/prelu.h"

namespace fxquant {
namespace {

Tensor prelu_cpu(const Tensor& x, double x_scale, int64_t x_zero_point, const Tensor& slope, double scale,
                 int64_t zero_point, int64_t quant_min, int64_t quant_max) {
  const Elementwise e = prepare_prelu(x, x_scale, x_zero_point, slope, scale, zero_point, quant_min, quant_max);
  const ElementwiseArgs args{x.const_data_ptr(),
                             slope.const_data_ptr(),
                             e.y.mutable_data_ptr(),
                             x.scalar_type() == ScalarType::Char,
                             &e.shape,
                             e.numbers.a_scale,
                             e.numbers.b_scale,
                             e.numbers.a_zero_point,
                             e.numbers.b_zero_point,
                             e.numbers.y_qparams};
  launch(args, e.y.numel(), kGrain,
         [](const ElementwiseArgs& a, int64_t begin, int64_t end, void*) { FXQ_LOOP(prelu_loop)(a, begin, end); });
  return e.y;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fxquant, CPU, m) { m.impl("prelu", TORCH_BOX(&prelu_cpu)); }

}  // namespace fxquant
