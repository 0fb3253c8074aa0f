// What the bindings of the pools share: arguments checked and completed, and the image they run over.
#pragma once
#include <vector>

#include "common/call.h"
#include "common/memory_format.h"
#include "common/quantized_checks.h"
#include "math/window.h"

namespace fxquant {

// x as images: [planes, rows, columns, channels] where channels_last, else [planes, rows, columns] and channels == 1.
struct Images {
  Tensor x;
  Tensor y;
  int64_t planes;
  int64_t channels;
  PoolAxis rows;
  PoolAxis columns;
};

inline void check_image(const char* op, const Tensor& x) {
  const int64_t dim = x.dim();
  if ((dim != 3 && dim != 4) || x.size(dim - 3) == 0 || x.size(dim - 2) == 0 || x.size(dim - 1) == 0) {
    fail(std::string(op) + ": x has the wrong shape", list_of(x.sizes()),
         "[N, C, H, W] or [C, H, W], of which only N may be 0");
  }
}

// One number for both axes, or one for each; those of `otherwise` if there is none.
inline std::vector<int64_t> pair(const char* op, const char* name, const std::vector<int64_t>& values, int64_t least,
                                 const std::vector<int64_t>& otherwise = {}) {
  const std::vector<int64_t>& given = values.empty() ? otherwise : values;
  if (given.size() != 1 && given.size() != 2) {
    fail(std::string(op) + ": " + name + " has the wrong length", list_of(values), "one number or two");
  }
  const std::vector<int64_t> both{given.front(), given.back()};
  if (std::min(both[0], both[1]) < least) {
    fail(std::string(op) + ": " + name + " is too small", list_of(both), "at least " + std::to_string(least));
  }
  if (std::max(both[0], both[1]) > kInt32Max) {
    fail(std::string(op) + ": " + name + " is too large", list_of(both), "at most " + std::to_string(kInt32Max));
  }
  return both;
}

// The number of windows, as torch has it: with ceil_mode the last one must begin in the input or before it.
inline int64_t pooling_size(const PoolAxis& a, bool ceil_mode) {
  const int64_t span = a.size + 2 * a.padding - a.dilation * (a.kernel - 1) - 1 + (ceil_mode ? a.stride - 1 : 0);
  int64_t outputs = (span >= 0 ? span / a.stride : -((-span + a.stride - 1) / a.stride)) + 1;
  if (ceil_mode && (outputs - 1) * a.stride >= a.size + a.padding) --outputs;
  return outputs;
}

// Images of x, with the windows of both axes known.
inline Images images_of(const char* op, const Tensor& x_, const PoolAxis& rows, const PoolAxis& columns) {
  const bool channels_last = is_channels_last(x_);
  std::vector<int64_t> sizes = sizes_of(x_);
  sizes[x_.dim() - 2] = rows.outputs;
  sizes[x_.dim() - 1] = columns.outputs;
  check_result_sizes(op, sizes);
  const int64_t channels = x_.size(x_.dim() - 3);
  const int64_t batch = x_.dim() == 4 ? x_.size(0) : 1;
  return {to_memory_format(x_, channels_last), empty_as(x_, sizes, channels_last), channels_last ? batch : batch * channels,
          channels_last ? channels : int64_t{1}, rows,                               columns};
}

inline Images prepare_pool(const char* op, const Tensor& x, const std::vector<int64_t>& kernel_size,
                           const std::vector<int64_t>& stride_, const std::vector<int64_t>& padding_,
                           const std::vector<int64_t>& dilation_, bool ceil_mode) {
  const std::vector<int64_t> kernel = pair(op, "kernel_size", kernel_size, 1);
  const std::vector<int64_t> stride = pair(op, "stride", stride_, 1, kernel);
  const std::vector<int64_t> padding = pair(op, "padding", padding_, 0);
  const std::vector<int64_t> dilation = pair(op, "dilation", dilation_, 1);
  const std::vector<int64_t> limits{kernel[0] / 2, kernel[1] / 2};
  if (padding[0] > limits[0] || padding[1] > limits[1]) {
    fail(std::string(op) + ": padding is too large", list_of(padding),
         "at most half of the kernel, " + list_of(limits));
  }
  PoolAxis axes[2];
  for (int a = 0; a < 2; ++a) {
    axes[a] = {x.size(x.dim() - 2 + a), 0, kernel[a], stride[a], padding[a], dilation[a]};
    axes[a].outputs = pooling_size(axes[a], ceil_mode);
  }
  if (axes[0].outputs < 1 || axes[1].outputs < 1) {
    fail(std::string(op) + ": x is smaller than the kernel",
         "x " + list_of(x.sizes()) + ", kernel_size " + list_of(kernel), "at least one window");
  }
  return images_of(op, x, axes[0], axes[1]);
}

struct MaxPool2dCall {
  Tensor x;
  std::vector<int64_t> kernel_size;
  std::vector<int64_t> stride;
  std::vector<int64_t> padding;
  std::vector<int64_t> dilation;
  bool ceil_mode;
};

inline Images prepare_max_pool2d(const MaxPool2dCall& c) {
  constexpr const char* op = "fxquant::max_pool2d";
  check_quantized(op, "x", c.x);
  check_image(op, c.x);
  return prepare_pool(op, c.x, c.kernel_size, c.stride, c.padding, c.dilation, c.ceil_mode);
}

}  // namespace fxquant
