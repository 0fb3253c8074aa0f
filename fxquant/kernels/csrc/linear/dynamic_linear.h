// What the bindings of dynamic_linear share: its arguments, their checks, and its two parts.
#pragma once
#include <optional>
#include <string>

#include "linear/linear.h"
#include "quantize/quantize_per_token.h"

namespace fxquant {

struct DynamicLinearCall {
  Tensor x;
  bool per_token;
  double eps;
  int64_t quant_min;
  int64_t quant_max;
  std::optional<int64_t> middle;
  ScalarType dtype;
  Tensor weight;
  Tensor zero_point_correction;
  Tensor weight_sums;
  Tensor scale;
  Tensor bias;
  double low;
  double high;
};

// Which values of x are measured together, and the product of what they are quantized to.
struct DynamicLinear {
  QuantizePerToken input;
  CheckedConv product;

  explicit DynamicLinear(const DynamicLinearCall& c, ReadsSteps reads_steps = reads_dense_alone)
      : input(checked_input(c)), product(checked_product(c, input, reads_steps)) {}

 private:
  static constexpr const char* kOp = "fxquant::dynamic_linear";

  static QuantizePerToken checked_input(const DynamicLinearCall& c) {
    return QuantizePerToken({c.x, c.eps, c.quant_min, c.quant_max, c.middle, c.dtype}, kOp, !c.per_token);
  }

  static CheckedConv checked_product(const DynamicLinearCall& c, const QuantizePerToken& input,
                                     ReadsSteps reads_steps) {
    if (!(c.low <= c.high)) {
      fail(std::string(kOp) + ": low and high are no limits",
           "[" + std::to_string(c.low) + ", " + std::to_string(c.high) + "]", "low <= high");
    }
    const LinearCall linear{input.q,      smallest_of(c.dtype), c.weight, c.zero_point_correction, c.scale, c.bias,
                            std::nullopt, 1.0,                  0,        1.0,                     0,       0,
                            0,            ScalarType::Float};
    CheckedConv product = checked_linear(linear, reads_steps, kOp);
    check_vector(kOp, linear, "weight_sums", c.weight_sums, ScalarType::Int);
    product.row_qparams = RowQParams{input.scale, input.zero_point, row_major(c.weight_sums), c.per_token ? 1 : 0};
    product.float_limits = {static_cast<float>(c.low), static_cast<float>(c.high)};
    return product;
  }
};

}  // namespace fxquant
