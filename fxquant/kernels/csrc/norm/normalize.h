// What the bindings of softmax and layer_norm share: rows of float or quantized values become quantized values.
#pragma once
#include "common/call.h"
#include "common/memory_format.h"
#include "common/quantized_checks.h"
#include "norm/row_type.h"

namespace fxquant {

struct SoftmaxCall {
  Tensor x;
  double x_scale;
  bool safe;
  double scale;
  int64_t zero_point;
  int64_t quant_min;
  int64_t quant_max;
  ScalarType dtype;
};

struct Rows {
  Tensor x;  // contiguous
  Tensor y;
  RowType type;
  int64_t count;
  int64_t columns;
  float x_scale;  // of quantized values
  OutputQParams y_qparams;
};

// Rows per task, large enough to hide the cost of starting one: an element costs several times a copy.
inline int64_t grain_of_rows(int64_t columns) {
  return std::max<int64_t>(kGrain / 4 / std::max<int64_t>(columns, 1), 1);
}

// Call has the fields that SoftmaxCall and LayerNormCall share.
template <typename Call>
Rows prepare_rows(const char* op, const Call& c) {
  const ScalarType from = c.x.scalar_type();
  if (from != ScalarType::Float && from != ScalarType::Byte && from != ScalarType::Char) {
    fail_dtype(op, "x", from, "float32, uint8 or int8");
  }
  if (c.x.dim() == 0) fail(std::string(op) + ": x has no dimension", "[]", "[..., columns]");
  if (c.dtype != ScalarType::Byte && c.dtype != ScalarType::Char) {
    fail_dtype(op, "dtype", c.dtype, "uint8 or int8");
  }
  const RowType type = from == ScalarType::Float  ? RowType::kFloat
                       : from == ScalarType::Byte ? RowType::kUint8
                                                  : RowType::kInt8;
  const float step = type == RowType::kFloat ? 1.0f : check_qparams(op, "x_", c.x_scale, 0, from);
  const OutputQParams y_qparams = check_output_qparams(op, c.scale, c.zero_point, c.quant_min, c.quant_max, c.dtype);
  const Tensor x = row_major(c.x);
  const int64_t columns = x.size(x.dim() - 1);
  const int64_t count = columns == 0 ? 0 : x.numel() / columns;
  const Tensor y = empty_as(x, sizes_of(x), false, c.dtype);
  prefer_huge_pages(y);
  return {x, y, type, count, columns, step, y_qparams};
}

}  // namespace fxquant
