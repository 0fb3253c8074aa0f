// What the bindings of prelu share: checks, the result, the merged strides of x and of the slopes.
#pragma once
#include "elementwise/elementwise.h"

namespace fxquant {

inline Elementwise prepare_prelu(const Tensor& x, double x_scale, int64_t x_zero_point, const Tensor& slope,
                                 double scale, int64_t zero_point, int64_t quant_min, int64_t quant_max) {
  constexpr const char* op = "fxquant::prelu";
  const ScalarType dtype = x.scalar_type();
  check_quantized(op, "x", x);
  if (slope.scalar_type() != ScalarType::Float) fail_dtype(op, "slope", slope.scalar_type(), "float32");
  check_same_device(op, "slope", slope, x);
  const float step = check_qparams(op, "x_", x_scale, x_zero_point, dtype);
  const OutputQParams y_qparams = check_output_qparams(op, scale, zero_point, quant_min, quant_max, dtype);
  bool fits = slope.dim() <= x.dim();
  for (int64_t d = 0; fits && d < x.dim(); ++d) {
    const int64_t size = size_at(slope, d, x.dim());
    fits = size == 1 || size == x.size(d);
  }
  if (!fits) {
    fail(std::string(op) + ": slope does not broadcast to x", list_of(slope.sizes()) + " and " + list_of(x.sizes()),
         "sizes that are equal or 1, from the last dimension on");
  }
  const Tensor y = allocated(torch::stable::empty_like(x));
  return {y, merged_strides(y, x, slope), {step, 1.0f, static_cast<int32_t>(x_zero_point), 0, y_qparams}};
}

}  // namespace fxquant
