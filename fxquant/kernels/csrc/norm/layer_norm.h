// What the bindings of layer_norm share beyond rows: weight and bias, and the most columns.
#pragma once
#include "math/layer_norm.h"
#include "norm/normalize.h"

namespace fxquant {

struct LayerNorm {
  Rows rows;
  Tensor weight;
  Tensor bias;
  double eps;  // with a quantized x in squared quantized units
};

inline Tensor checked_coefficients(const char* op, const char* argument, const Tensor& values, const Tensor& x) {
  if (values.scalar_type() != ScalarType::Float) fail_dtype(op, argument, values.scalar_type(), "float32");
  check_same_device(op, argument, values, x);
  check_count(op, argument, values, x.size(x.dim() - 1));
  return row_major(values);
}

struct LayerNormCall {
  Tensor x;
  Tensor weight;
  Tensor bias;
  double eps;
  double x_scale;
  double scale;
  int64_t zero_point;
  int64_t quant_min;
  int64_t quant_max;
  ScalarType dtype;
};

inline LayerNorm prepare_layer_norm(const LayerNormCall& c) {
  constexpr const char* op = "fxquant::layer_norm";
  const Rows rows = prepare_rows(op, c);
  if (!(c.eps >= 0 && c.eps <= 1e300)) {
    fail(std::string(op) + ": eps is out of range", c.eps, "0 or a small positive number");
  }
  if (rows.columns > kMostColumns) {
    fail(std::string(op) + ": a row is too long for an exact sum of squares", rows.columns,
         "at most " + std::to_string(kMostColumns) + " columns");
  }
  const double step = static_cast<double>(rows.x_scale);
  return {rows, checked_coefficients(op, "weight", c.weight, rows.x), checked_coefficients(op, "bias", c.bias, rows.x),
          rows.type == RowType::kFloat ? c.eps : c.eps / (step * step)};
}

}  // namespace fxquant
