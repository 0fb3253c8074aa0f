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
  const RequantizeQParams qparams = check_requantize(op, c);
  if (c.slope.scalar_type() != ScalarType::Float) fail_dtype(op, "slope", c.slope.scalar_type(), "float32");
  check_same_device(op, "slope", c.slope, c.x);
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
  return {y, merged_strides(y, c.x, c.slope), {qparams.x_scale, 1.0f, qparams.x_zero_point, 0, qparams.y}};
}

}  // namespace fxquant
