// What the bindings of avg_pool2d, adaptive_avg_pool2d and mean share: all three are sums over windows of images.
#pragma once
#include <vector>

#include "pool/pool.h"

namespace fxquant {

struct Average {
  Images images;
  bool count_padding;  // whether a divisor counts the padding
  int64_t divisor;     // 0: the number of elements
  RequantizeQParams qparams;

  // Of the largest window.
  int64_t elements() const { return longest(images.rows) * longest(images.columns); }

 private:
  static int64_t longest(const PoolAxis& axis) { return axis.kernel == 0 ? axis.size : std::min(axis.kernel, axis.size); }
};

struct AvgPool2dCall {
  Tensor x;
  std::vector<int64_t> kernel_size;
  std::vector<int64_t> stride;
  std::vector<int64_t> padding;
  bool ceil_mode;
  bool count_include_pad;
  std::optional<int64_t> divisor_override;
  double x_scale;
  int64_t x_zero_point;
  double scale;
  int64_t zero_point;
  int64_t quant_min;
  int64_t quant_max;
};

inline Average prepare_avg_pool2d(const AvgPool2dCall& c) {
  constexpr const char* op = "fxquant::avg_pool2d";
  const RequantizeQParams qparams = check_requantize(op, c);
  if (c.divisor_override == 0) {
    fail(std::string(op) + ": divisor_override is out of range", 0, "None or a number other than 0");
  }
  check_image(op, c.x);
  const Images images = prepare_pool(op, c.x, c.kernel_size, c.stride, c.padding, {1, 1}, c.ceil_mode);
  return {images, c.count_include_pad, c.divisor_override.value_or(0), qparams};
}

struct AdaptiveAvgPool2dCall {
  Tensor x;
  std::vector<int64_t> output_size;
  double x_scale;
  int64_t x_zero_point;
  double scale;
  int64_t zero_point;
  int64_t quant_min;
  int64_t quant_max;
};

inline Average prepare_adaptive_avg_pool2d(const AdaptiveAvgPool2dCall& c) {
  constexpr const char* op = "fxquant::adaptive_avg_pool2d";
  const RequantizeQParams qparams = check_requantize(op, c);
  check_image(op, c.x);
  const std::vector<int64_t> outputs = pair(op, "output_size", c.output_size, 0);
  const PoolAxis rows{c.x.size(c.x.dim() - 2), outputs[0], 0, 0, 0, 0};
  const PoolAxis columns{c.x.size(c.x.dim() - 1), outputs[1], 0, 0, 0, 0};
  return {images_of(op, c.x, rows, columns), false, 0, qparams};
}

// Dimensions that are reduced, as flags.
inline std::vector<bool> reduced_flags(const char* op, const Tensor& x, const std::vector<int64_t>& dim) {
  std::vector<bool> reduced(x.dim(), dim.empty());
  for (const int64_t d : dim) {
    if (x.dim() == 0) break;
    const int64_t axis = check_axis(op, d, x.dim());
    if (reduced[axis]) {
      fail(std::string(op) + ": dim names a dimension twice", list_of(dim), "each at most once");
    }
    reduced[axis] = true;
  }
  return reduced;
}

struct MeanCall {
  Tensor x;
  std::vector<int64_t> dim;
  bool keepdim;
  double x_scale;
  int64_t x_zero_point;
  double scale;
  int64_t zero_point;
  int64_t quant_min;
  int64_t quant_max;
};

// A mean is one window: of images [not reduced, reduced, not reduced] where the memory of x has that order, else of a copy
// in the order [not reduced, reduced].
inline Average prepare_mean(const MeanCall& c) {
  const Tensor& x = c.x;
  constexpr const char* op = "fxquant::mean";
  const RequantizeQParams qparams = check_requantize(op, c);
  const std::vector<bool> reduced = reduced_flags(op, x, c.dim);
  const bool channels_last = c.keepdim && is_channels_last(x);
  std::vector<int64_t> sizes;
  for (int64_t d = 0; d < x.dim(); ++d) {
    if (!reduced[d] || c.keepdim) sizes.push_back(reduced[d] ? 1 : x.size(d));
  }
  const Tensor y = empty_as(x, sizes, channels_last);

  std::vector<int64_t> order_of_y;  // of the result's memory
  std::vector<int64_t> logical(x.dim());
  for (int64_t d = 0; d < x.dim(); ++d) logical[d] = d;
  if (channels_last) logical = {0, 2, 3, 1};
  for (const int64_t d : logical) {
    if (!reduced[d] && x.size(d) != 1) order_of_y.push_back(d);
  }
  int64_t outer = 1;
  int64_t count = 1;
  int64_t inner = 1;
  bool fits = is_dense(x);
  bool reducing = false;
  size_t next_of_y = 0;
  for (const int64_t d : memory_order(x)) {
    if (reduced[d]) {
      fits = fits && inner == 1;
      reducing = true;
      count *= x.size(d);
    } else {
      fits = fits && order_of_y[next_of_y] == d;
      ++next_of_y;
      (reducing ? inner : outer) *= x.size(d);
    }
  }
  Tensor values = x;
  if (!fits && x.numel() != 0) {
    std::vector<int64_t> order = order_of_y;
    for (int64_t d = 0; d < x.dim(); ++d) {
      if (!reduced[d] && x.size(d) == 1) order.push_back(d);
    }
    for (int64_t d = 0; d < x.dim(); ++d) {
      if (reduced[d]) order.push_back(d);
    }
    values = row_major(torch::stable::permute(x, order));
    outer *= inner;
    inner = 1;
  }
  const PoolAxis one{1, 1, 0, 0, 0, 0};
  const PoolAxis all{count, 1, 0, 0, 0, 0};
  const Images images = inner == 1 ? Images{values, y, outer, 1, one, all} : Images{values, y, outer, inner, all, one};
  return {images, false, 0, qparams};
}

}  // namespace fxquant
