// What the bindings of cat share: checks, the result's shape and layout, the inputs in the result's order.
#pragma once
#include <vector>

#include "common/call.h"
#include "common/memory_format.h"
#include "common/quantized_checks.h"

namespace fxquant {

struct Cat {
  Tensor y;
  int64_t axis;
  std::vector<Tensor> parts;  // dense, in the memory order of y
  std::vector<float> scales;
  std::vector<int32_t> zero_points;
  std::vector<bool> copied;  // It has the qparams of y, and no value lies beyond the limits.
  OutputQParams y_qparams;
  int64_t inner;  // elements inside the axis, in the order of memory

  int64_t length(size_t i) const { return parts[i].size(axis) * inner; }
};

struct CatCall {
  std::vector<Tensor> tensors;
  std::vector<double> scales;
  std::vector<int64_t> zero_points;
  int64_t dim;
  double scale;
  int64_t zero_point;
  int64_t quant_min;
  int64_t quant_max;
};

inline Cat prepare_cat(const CatCall& c) {
  constexpr const char* op = "fxquant::cat";
  if (c.tensors.empty() || c.tensors.size() != c.scales.size() || c.tensors.size() != c.zero_points.size()) {
    fail(std::string(op) + ": tensors, scales and zero_points do not go together",
         std::to_string(c.tensors.size()) + ", " + std::to_string(c.scales.size()) + " and " +
             std::to_string(c.zero_points.size()) + " of them",
         "as many of each, and at least one");
  }
  const ScalarType dtype = c.tensors[0].scalar_type();
  Cat cat{c.tensors[0], 0, {}, {}, {}, {}, {}, 1};
  for (size_t i = 0; i < c.tensors.size(); ++i) {
    const std::string name = "tensors[" + std::to_string(i) + "]";
    check_quantized(op, name, c.tensors[i]);
    check_same_dtype(op, name, c.tensors[i], c.tensors[0]);
    check_same_device(op, name, c.tensors[i], c.tensors[0]);
    const float s = check_qparams(op, name + " ", c.scales[i], c.zero_points[i], dtype);
    if (c.tensors[i].dim() == 1 && c.tensors[i].size(0) == 0) continue;
    cat.parts.push_back(c.tensors[i]);
    cat.scales.push_back(s);
    cat.zero_points.push_back(static_cast<int32_t>(c.zero_points[i]));
  }
  cat.y_qparams = check_output_qparams(op, c.scale, c.zero_point, c.quant_min, c.quant_max, dtype);
  if (cat.parts.empty()) {
    cat.y = empty_as(c.tensors[0], {0}, false);
    return cat;
  }
  const Tensor& first = cat.parts[0];
  cat.axis = check_axis(op, c.dim, first.dim());
  std::vector<int64_t> sizes = sizes_of(first);
  sizes[cat.axis] = 0;
  bool channels_last = true;
  for (const Tensor& x : cat.parts) {
    bool fits = x.dim() == first.dim();
    for (int64_t d = 0; fits && d < x.dim(); ++d) fits = d == cat.axis || x.size(d) == first.size(d);
    if (!fits) {
      fail(std::string(op) + ": the shapes of the tensors do not go together",
           list_of(first.sizes()) + " and " + list_of(x.sizes()),
           "equal sizes in every dimension but " + std::to_string(cat.axis));
    }
    if (x.size(cat.axis) > std::numeric_limits<int64_t>::max() - sizes[cat.axis]) {
      fail(std::string(op) + ": the result is too large", "2^63 and more", "a size that memory has room for");
    }
    sizes[cat.axis] += x.size(cat.axis);
    channels_last = channels_last && is_channels_last(x);
  }
  check_result_sizes(op, sizes);
  const bool all = c.quant_min == smallest_of(dtype) && c.quant_max == smallest_of(dtype) + 255;
  for (size_t i = 0; i < cat.parts.size(); ++i) {
    cat.parts[i] = to_memory_format(cat.parts[i], channels_last);
    cat.copied.push_back(all && cat.scales[i] == static_cast<float>(c.scale) && cat.zero_points[i] == c.zero_point);
  }
  cat.y = empty_as(first, sizes, channels_last);
  const std::vector<int64_t> strides = dense_strides(sizes, channels_last);
  cat.inner = strides[cat.axis];
  return cat;
}

}  // namespace fxquant
