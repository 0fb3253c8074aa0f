// The bindings of matmul share checks, geometry and the allocation of the result.
#pragma once
#include <string>
#include <vector>

#include "common/call.h"
#include "common/memory_format.h"
#include "common/quantized_checks.h"
#include "matmul/batches.h"

namespace fxquant {

constexpr int64_t kMostProducts = 2147483647 / (255 * 255);  // An int32 accumulator holds so many for certain.

// A factor of the product. Strides are in elements. The outer dimension is M of a, and N of b.
struct Factor {
  const uint8_t* data;
  bool is_signed;
  int32_t zero_point;
  int64_t outer_stride;
  int64_t k_stride;
  Batches matrices;  // matrix of the result -> offset of the factor's matrix
};

struct Matmul {
  int64_t batch, rows, k_size, columns;
  Factor a, b;
  float scale;  // of both factors
  OutputQParams y_qparams;
  bool is_float;  // The result is float32.
  Tensor y;
};

inline std::vector<int64_t> leading_sizes(const Tensor& x) {
  std::vector<int64_t> sizes = sizes_of(x);
  sizes.resize(std::max<int64_t>(x.dim() - 2, 0));
  return sizes;
}

inline Batches batches_of(const Tensor& x, const std::vector<int64_t>& sizes) {
  Batches batches;
  batches.dims = static_cast<int>(sizes.size());
  const int64_t missing = batches.dims - std::max<int64_t>(x.dim() - 2, 0);
  for (int d = 0; d < batches.dims; ++d) {
    const bool repeated = d < missing || x.size(d - missing) == 1;
    batches.size[d] = sizes[d];
    batches.stride[d] = repeated ? 0 : x.stride(d - missing);
  }
  return batches;
}

struct MatmulCall {
  Tensor a;
  double a_scale;
  int64_t a_zero_point;
  Tensor b;
  double b_scale;
  int64_t b_zero_point;
  double y_scale;
  int64_t y_zero_point;
  int64_t quant_min;
  int64_t quant_max;
  ScalarType dtype;
};

inline Matmul prepare_matmul(const MatmulCall& c) {
  const Tensor &a = c.a, &b = c.b;
  const char* op = "fxquant::matmul";
  const std::string name = op;
  check_quantized(op, "a", a);
  check_quantized(op, "b", b);
  check_same_device(op, "b", b, a);
  const float sa = check_qparams(op, "a_", c.a_scale, c.a_zero_point, a.scalar_type());
  const float sb = check_qparams(op, "b_", c.b_scale, c.b_zero_point, b.scalar_type());
  const bool is_float = c.dtype == ScalarType::Float;
  if (!is_float && c.dtype != ScalarType::Byte && c.dtype != ScalarType::Char) {
    fail_dtype(op, "dtype", c.dtype, "uint8, int8 or float32");
  }
  const OutputQParams y_qparams =
      is_float ? OutputQParams{}
               : check_output_qparams(op, c.y_scale, c.y_zero_point, c.quant_min, c.quant_max, c.dtype);
  const std::string both = shape_of(a) + " and " + shape_of(b);
  if (a.dim() == 0 || b.dim() == 0) {
    fail(name + ": a and b cannot be multiplied", both, "at least one dimension each");
  }
  const bool has_rows = a.dim() > 1;
  const bool has_columns = b.dim() > 1;
  const int64_t k_size = a.size(a.dim() - 1);
  const int64_t inner = b.dim() - (has_columns ? 2 : 1);
  if (b.size(inner) != k_size) {
    fail(name + ": a and b cannot be multiplied", both, "[..., M, K] and [..., K, N]");
  }
  if (k_size > kMostProducts) {
    fail(name + ": a sum could leave int32", "K = " + std::to_string(k_size), "at most " + std::to_string(kMostProducts));
  }
  std::vector<int64_t> sizes = leading_sizes(a);
  std::vector<int64_t> others = leading_sizes(b);
  if (sizes.size() < others.size()) sizes.insert(sizes.begin(), others.size() - sizes.size(), 1);
  others.insert(others.begin(), sizes.size() - others.size(), 1);
  if (static_cast<int64_t>(sizes.size()) > kMaxDims) fail(name + ": a and b have too many dimensions", both, "at most 64");
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] != others[d] && sizes[d] != 1 && others[d] != 1) {
      fail(name + ": the batches of a and b do not broadcast", both, "leading sizes that are equal or 1");
    }
    sizes[d] = sizes[d] == 1 ? others[d] : sizes[d];
  }
  const auto factor = [&](const Tensor& x, int64_t zero_point, int64_t outer_stride, int64_t k_stride) {
    return Factor{static_cast<const uint8_t*>(x.const_data_ptr()),
                  x.scalar_type() == ScalarType::Char,
                  static_cast<int32_t>(zero_point),
                  outer_stride,
                  k_stride,
                  batches_of(x, sizes)};
  };
  const Factor left = factor(a, c.a_zero_point, has_rows ? a.stride(a.dim() - 2) : 0, a.stride(a.dim() - 1));
  const Factor right = factor(b, c.b_zero_point, has_columns ? b.stride(b.dim() - 1) : 0, b.stride(inner));
  const int64_t rows = has_rows ? a.size(a.dim() - 2) : 1;
  const int64_t columns = has_columns ? b.size(b.dim() - 1) : 1;
  if (has_rows) sizes.push_back(rows);
  if (has_columns) sizes.push_back(columns);
  check_result_sizes(op, sizes);
  int64_t batch = 1;
  for (int d = 0; d < left.matrices.dims; ++d) batch *= left.matrices.size[d];
  return {batch, rows, k_size, columns, left, right, sa * sb, y_qparams, is_float, empty_as(a, sizes, false, c.dtype)};
}

}  // namespace fxquant
