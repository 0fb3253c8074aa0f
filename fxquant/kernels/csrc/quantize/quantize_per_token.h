// What the bindings of quantize_per_token share, and those of dynamic_linear with them: arguments, checks, results.
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

  // as_one_row: the whole tensor has one range.
  explicit QuantizePerToken(const QuantizePerTokenCall& c, const char* op = "fxquant::quantize_per_token",
                            bool as_one_row = false)
      : type(float_type(op, "x", c.x.scalar_type())), x(c.x), q(c.x), scale(c.x), zero_point(c.x), rows(1) {
    if (c.dtype != ScalarType::Byte && c.dtype != ScalarType::Char) fail_dtype(op, "dtype", c.dtype, "uint8 or int8");
    if (c.x.dim() == 0) fail(std::string(op) + ": x has no dimension", "[]", "[..., columns]");
    check_limits(op, c.quant_min, c.quant_max, smallest_of(c.dtype), smallest_of(c.dtype) + 255);
    if (c.middle.has_value()) check_zero_point(op, *c.middle, c.quant_min, c.quant_max);
    if (!(std::abs(c.eps) <= std::numeric_limits<float>::max())) {
      fail(std::string(op) + ": eps is out of range", c.eps, "a finite float32");
    }
    std::vector<int64_t> sizes = sizes_of(c.x);
    columns = sizes.back();
    sizes.pop_back();
    check_result_sizes(op, sizes);
    for (const int64_t size : sizes) rows *= size;
    if (as_one_row) {
      columns = c.x.numel();
      rows = 1;
    }
    x = row_major(c.x);
    q = empty_as(x, sizes_of(x), false, c.dtype);
    prefer_huge_pages(q);
    scale = empty_as(x, {rows}, false, ScalarType::Float);
    zero_point = empty_as(x, {rows}, false, ScalarType::Int);
    choice = {static_cast<float>(c.eps),          1.0f,
              static_cast<int32_t>(c.quant_min),  static_cast<int32_t>(c.quant_max),
              static_cast<int32_t>(c.middle.value_or(0)), c.middle.has_value()};
  }
};

}  // namespace fxquant
