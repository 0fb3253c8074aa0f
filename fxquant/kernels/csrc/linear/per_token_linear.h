// What the bindings of per_token_linear share: its arguments, and the product as a convolution.
#pragma once
#include "linear/linear.h"

namespace fxquant {

struct PerTokenLinearCall {
  Tensor x;
  Tensor x_scale;
  Tensor x_zero_point;
  Tensor weight;
  Tensor zero_point_correction;
  Tensor weight_sums;
  Tensor scale;
  Tensor bias;
};

inline void check_rows(const char* op, const PerTokenLinearCall& c, const char* argument, const Tensor& values,
                       ScalarType dtype, int64_t rows) {
  if (values.scalar_type() != dtype) fail_dtype(op, argument, values.scalar_type(), name_of(dtype).c_str() + 6);
  if (values.dim() != 1 || values.numel() != rows) {
    fail(std::string(op) + ": " + argument + " has the wrong shape", shape_of(values), "[" + std::to_string(rows) + "]");
  }
  check_same_device(op, argument, values, c.x);
}

inline CheckedConv checked_per_token_linear(const PerTokenLinearCall& c, ReadsSteps reads_steps = reads_dense_alone) {
  constexpr const char* op = "fxquant::per_token_linear";
  check_quantized(op, "x", c.x);
  const LinearCall product{c.x,          smallest_of(c.x.scalar_type()), c.weight, c.zero_point_correction, c.scale, c.bias,
                           std::nullopt, 1.0,                            0,        1.0,                     0,       0,
                           0,            ScalarType::Float};
  CheckedConv conv = checked_linear(product, reads_steps, op);
  const int64_t rows = conv.shape.out_pixels();
  check_rows(op, c, "x_scale", c.x_scale, ScalarType::Float, rows);
  check_rows(op, c, "x_zero_point", c.x_zero_point, ScalarType::Int, rows);
  check_vector(op, product, "weight_sums", c.weight_sums, ScalarType::Int);
  conv.row_qparams = RowQParams{row_major(c.x_scale), row_major(c.x_zero_point), row_major(c.weight_sums)};
  return conv;
}

}  // namespace fxquant
