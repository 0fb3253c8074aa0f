// What the bindings of add and mul share: checks, the result's shape and layout, the merged strides.
#pragma once
#include <vector>

#include "common/call.h"
#include "common/memory_format.h"
#include "common/quantized_checks.h"
#include "common/strided.h"

namespace fxquant {

struct BinaryCall {
  Tensor a;
  double a_scale;
  int64_t a_zero_point;
  Tensor b;
  double b_scale;
  int64_t b_zero_point;
  double scale;
  int64_t zero_point;
  int64_t quant_min;
  int64_t quant_max;
};

struct Elementwise {
  struct Numbers {
    float a_scale;
    float b_scale;
    int32_t a_zero_point;
    int32_t b_zero_point;
    OutputQParams y_qparams;
  };

  Tensor y;
  StridedPair shape;
  Numbers numbers;
};

inline bool has_sizes(const Tensor& x, const std::vector<int64_t>& sizes) {
  return x.dim() == static_cast<int64_t>(sizes.size()) && std::equal(sizes.begin(), sizes.end(), x.sizes().begin());
}

// x, seen as the last dimensions of dim many: its size (1 beyond its own) and its stride (0 where it is repeated).
inline int64_t size_at(const Tensor& x, int64_t d, int64_t dim) {
  return d < dim - x.dim() ? 1 : x.size(d - (dim - x.dim()));
}
inline int64_t stride_at(const Tensor& x, int64_t d, int64_t dim) {
  return size_at(x, d, dim) == 1 ? 0 : x.stride(d - (dim - x.dim()));
}

inline std::vector<int64_t> broadcast_sizes(const char* op, const Tensor& a, const Tensor& b) {
  const int64_t dim = std::max(a.dim(), b.dim());
  if (dim > kMaxDims) fail(std::string(op) + ": a and b have too many dimensions", dim, "at most 64");
  std::vector<int64_t> sizes(dim);
  for (int64_t d = 0; d < dim; ++d) {
    const int64_t m = size_at(a, d, dim);
    const int64_t n = size_at(b, d, dim);
    if (m != n && m != 1 && n != 1) {
      fail(std::string(op) + ": a and b do not broadcast", list_of(a.sizes()) + " and " + list_of(b.sizes()),
           "sizes that are equal or 1, from the last dimension on");
    }
    sizes[d] = m == 1 ? n : m;
  }
  return sizes;
}

inline bool same_strides(const Tensor& a, const Tensor& b) {
  return a.dim() == b.dim() && std::equal(a.sizes().begin(), a.sizes().end(), b.sizes().begin()) &&
         std::equal(a.strides().begin(), a.strides().end(), b.strides().begin());
}

inline StridedPair merged_strides(const Tensor& y, const Tensor& a, const Tensor& b) {
  StridedPair s;
  s.dims = 0;
  if (y.numel() == 0) return {1, {0}, {1}, {1}};  // it may have more dimensions than there is room for
  for (const int64_t d : memory_order(y)) {
    const int64_t size = y.size(d);
    const int64_t a_stride = stride_at(a, d, y.dim());
    const int64_t b_stride = stride_at(b, d, y.dim());
    const int last = s.dims - 1;
    if (last >= 0 && s.a_stride[last] == a_stride * size && s.b_stride[last] == b_stride * size) {
      s.size[last] *= size;
      s.a_stride[last] = a_stride;
      s.b_stride[last] = b_stride;
    } else {
      s.size[s.dims] = size;
      s.a_stride[s.dims] = a_stride;
      s.b_stride[s.dims] = b_stride;
      ++s.dims;
    }
  }
  if (s.dims == 0) {
    s.dims = 1;
    s.size[0] = s.a_stride[0] = s.b_stride[0] = 1;
  }
  return s;
}

inline Elementwise prepare_binary(const char* op, const BinaryCall& c) {
  const Tensor &a = c.a, &b = c.b;
  const ScalarType dtype = a.scalar_type();
  check_quantized(op, "a", a);
  check_same_dtype(op, "b", b, a);
  check_same_device(op, "b", b, a);
  const float a_scale = check_qparams(op, "a_", c.a_scale, c.a_zero_point, dtype);
  const float b_scale = check_qparams(op, "b_", c.b_scale, c.b_zero_point, dtype);
  const OutputQParams y_qparams =
      check_output_qparams(op, c.scale, c.zero_point, c.quant_min, c.quant_max, dtype);
  const Elementwise::Numbers numbers{a_scale, b_scale, static_cast<int32_t>(c.a_zero_point),
                                     static_cast<int32_t>(c.b_zero_point), y_qparams};
  if (same_strides(a, b) && is_dense(a)) {
    StridedPair flat;
    flat.dims = 1;
    flat.size[0] = a.numel();
    flat.a_stride[0] = flat.b_stride[0] = 1;
    return {empty_like_dense(a, dtype), flat, numbers};
  }
  const std::vector<int64_t> sizes = broadcast_sizes(op, a, b);
  const Tensor y = has_sizes(a, sizes)   ? allocated(torch::stable::empty_like(a))
                   : has_sizes(b, sizes) ? allocated(torch::stable::empty_like(b))
                                         : empty_as(a, sizes, false);
  return {y, merged_strides(y, a, b), numbers};
}

}  // namespace fxquant
