// What the bindings of prelu share: checks, the result, the merged strides of x and of the slopes.
#pragma once
#include "elementwise/elementwise.h"

namespace fxquant {

struct PReluCall {
  Tensor x;
  double x_scale;
  int64_t x_zero_point;
  Tensor slope;
  double scale;
  int64_t zero_point;
  int64_t quant_min;
  int64_t quant_max;
};

inline Elementwise prepare_prelu(const PReluCall& c) {
  constexpr const char* op = "fxquant::prelu";
  const ScalarType dtype = c.x.scalar_type();
  check_quantized(op, "x", c.x);
  if (c.slope.scalar_type() != ScalarType::Float) fail_dtype(op, "slope", c.slope.scalar_type(), "float32");
  check_same_device(op, "slope", c.slope, c.x);
  const float step = check_qparams(op, "x_", c.x_scale, c.x_zero_point, dtype);
  const OutputQParams y_qparams = check_output_qparams(op, c.scale, c.zero_point, c.quant_min, c.quant_max, dtype);
  bool fits = c.slope.dim() <= c.x.dim();
  for (int64_t d = 0; fits && d < c.x.dim(); ++d) {
    const int64_t size = size_at(c.slope, d, c.x.dim());
    fits = size == 1 || size == c.x.size(d);
  }
  if (!fits) {
    fail(std::string(op) + ": slope does not broadcast to x",
         list_of(c.slope.sizes()) + " and " + list_of(c.x.sizes()),
         "sizes that are equal or 1, from the last dimension on");
  }
  const Tensor y = allocated(torch::stable::empty_like(c.x));
  return {y, merged_strides(y, c.x, c.slope), {step, 1.0f, static_cast<int32_t>(c.x_zero_point), 0, y_qparams}};
}

}  // namespace fxquant
