// What the bindings of linear share: its arguments, and the product as a convolution.
#pragma once
#include <optional>
#include <vector>

#include "conv/conv.h"

namespace fxquant {

struct LinearCall {
  Tensor x;
  int64_t x_zero_point;
  Tensor weight;
  Tensor zero_point_correction;
  Tensor scale;
  Tensor bias;
  std::optional<Tensor> residual;
  double residual_scale;
  int64_t residual_zero_point;
  double y_scale;
  int64_t y_zero_point;
  int64_t quant_min;
  int64_t quant_max;
  ScalarType dtype;
};

inline CheckedConv checked_linear(const LinearCall& c, ReadsSteps reads_steps = reads_dense_alone,
                                  const char* op = "fxquant::linear") {
  check_input(op, c);
  if (c.x.dim() == 0) fail(std::string(op) + ": x has the wrong shape", "[]", "[..., in_features]");
  std::vector<int64_t> sizes = sizes_of(c.x);
  const int64_t in_features = sizes.back();
  sizes.pop_back();
  int64_t rows = 1;
  for (const int64_t size : sizes) rows *= size;
  sizes.push_back(c.scale.numel());
  return check_and_allocate(op, c, linear_shape(rows, in_features, c.scale.numel()), sizes, false, reads_steps);
}

}  // namespace fxquant
