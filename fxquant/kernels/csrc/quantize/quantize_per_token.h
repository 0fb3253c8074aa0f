// What the bindings of quantize_per_token share: its arguments, their checks, and its results.
#pragma once
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "common/call.h"
#include "common/memory_format.h"
#include "common/numbers.h"
#include "common/quantized_checks.h"
#include "math/qparams.h"

namespace fxquant {

struct QuantizePerTokenCall {
  Tensor x;
  double eps;
  int64_t quant_min;
  int64_t quant_max;
  std::optional<int64_t> middle;
  ScalarType dtype;
};

// A call, checked, and its results, not filled yet.
struct QuantizePerToken {
  Float type;
  Tensor x;  // row-major
  Tensor q;
  Tensor scale;       // float32 [rows]
  Tensor zero_point;  // int32 [rows]
  int64_t rows;
  int64_t columns;
  QParamsOptions choice;

  explicit QuantizePerToken(const QuantizePerTokenCall& c)
      : type(float_type(kOp, "x", c.x.scalar_type())), x(c.x), q(c.x), scale(c.x), zero_point(c.x), rows(1) {
    if (c.dtype != ScalarType::Byte && c.dtype != ScalarType::Char) fail_dtype(kOp, "dtype", c.dtype, "uint8 or int8");
    if (c.x.dim() == 0) fail(std::string(kOp) + ": x has no dimension", "[]", "[..., columns]");
    check_limits(kOp, c.quant_min, c.quant_max, smallest_of(c.dtype), smallest_of(c.dtype) + 255);
    if (c.middle.has_value()) check_zero_point(kOp, *c.middle, c.quant_min, c.quant_max);
    if (!(std::abs(c.eps) <= std::numeric_limits<float>::max())) {
      fail(std::string(kOp) + ": eps is out of range", c.eps, "a finite float32");
    }
    std::vector<int64_t> sizes = sizes_of(c.x);
    columns = sizes.back();
    sizes.pop_back();
    check_result_sizes(kOp, sizes);
    for (const int64_t size : sizes) rows *= size;
    x = row_major(c.x);
    q = empty_as(x, sizes_of(x), false, c.dtype);
    prefer_huge_pages(q);
    scale = empty_as(x, {rows}, false, ScalarType::Float);
    zero_point = empty_as(x, {rows}, false, ScalarType::Int);
    choice = {static_cast<float>(c.eps),          1.0f,
              static_cast<int32_t>(c.quant_min),  static_cast<int32_t>(c.quant_max),
              static_cast<int32_t>(c.middle.value_or(0)), c.middle.has_value()};
  }

 private:
  static constexpr const char* kOp = "fxquant::quantize_per_token";
};

}  // namespace fxquant
