// What the bindings of softmax and layer_norm share: rows of float or quantized values become quantized values.
#pragma once
#include "common/memory_format.h"
#include "common/quantized_checks.h"
#include "norm/row_type.h"

namespace fxquant {

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

inline Rows prepare_rows(const char* op, const Tensor& x_, double x_scale, double scale, int64_t zero_point,
                         int64_t quant_min, int64_t quant_max, ScalarType dtype) {
  const ScalarType from = x_.scalar_type();
  if (from != ScalarType::Float && from != ScalarType::Byte && from != ScalarType::Char) {
    fail_dtype(op, "x", from, "float32, uint8 or int8");
  }
  if (x_.dim() == 0) fail(std::string(op) + ": x has no dimension", "[]", "[..., columns]");
  if (dtype != ScalarType::Byte && dtype != ScalarType::Char) fail_dtype(op, "dtype", dtype, "uint8 or int8");
  const RowType type = from == ScalarType::Float  ? RowType::kFloat
                       : from == ScalarType::Byte ? RowType::kUint8
                                                  : RowType::kInt8;
  const float step = type == RowType::kFloat ? 1.0f : check_qparams(op, "x_", x_scale, 0, from);
  const OutputQParams y_qparams = check_output_qparams(op, scale, zero_point, quant_min, quant_max, dtype);
  const Tensor x = row_major(x_);
  const int64_t columns = x.size(x.dim() - 1);
  const int64_t count = columns == 0 ? 0 : x.numel() / columns;
  const Tensor y = empty_as(x, sizes_of(x), false, dtype);
  prefer_huge_pages(y);
  return {x, y, type, count, columns, step, y_qparams};
}

}  // namespace fxquant
