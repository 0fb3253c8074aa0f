#include <torch/csrc/stable/library.h>

#include "cpu/launch.h"
#include "elementwise/cpu/loops/elementwise.h"
#include "elementwise/elementwise.h"

namespace fxquant {
namespace {

Tensor add_cpu(const Tensor& a, double a_scale, int64_t a_zero_point, const Tensor& b, double b_scale,
               int64_t b_zero_point, double scale, int64_t zero_point, int64_t quant_min, int64_t quant_max) {
  const Elementwise e = prepare_elementwise("fxquant::add", a, a_scale, a_zero_point, b, b_scale, b_zero_point, scale,
                                            zero_point, quant_min, quant_max);
  const ElementwiseArgs args{a.const_data_ptr(),
                             b.const_data_ptr(),
                             e.y.mutable_data_ptr(),
                             a.scalar_type() == ScalarType::Char,
                             &e.shape,
                             e.numbers.a_scale,
                             e.numbers.b_scale,
                             e.numbers.a_zero_point,
                             e.numbers.b_zero_point,
                             e.numbers.y_qparams};
  launch(args, e.y.numel(), kGrain,
         [](const ElementwiseArgs& a, int64_t begin, int64_t end, void*) { FXQ_LOOP(add_loop)(a, begin, end); });
  return e.y;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fxquant, CPU, m) { m.impl("add", TORCH_BOX(&add_cpu)); }

}  // namespace fxquant
