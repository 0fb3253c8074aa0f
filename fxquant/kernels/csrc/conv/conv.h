// What the bindings of convolutions share, and those of linear layers with them: checks, geometry, the result.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "common/call.h"
#include "common/memory_format.h"
#include "common/quantized_checks.h"
#include "conv/conv_shape.h"

namespace fxquant {

// Of a linear layer whose rows have qparams of their own: float32 [rows], int32 [rows] and int32 [channels].
struct RowQParams {
  Tensor scale;
  Tensor zero_point;
  Tensor weight_sums;
  int64_t step = 1;  // 0: all rows have those of the first one, [1]
};

// A call whose arguments are checked, with the memory of its result. Linear layers are 1 x 1 convolutions.
struct CheckedConv {
  ConvShape shape;
  Tensor x;  // channels innermost, and dense where x_step is in_channels; the next two are dense
  std::optional<Tensor> residual;
  Tensor y;
  Tensor weight;
  Tensor zero_point_correction;
  Tensor scale;
  Tensor bias;
  int32_t x_zero_point;
  float residual_scale;
  int32_t residual_zero_point;
  OutputQParams y_qparams;
  std::optional<RowQParams> row_qparams = std::nullopt;  // of a linear layer
  int64_t x_step = shape.in_channels;                    // elements from a pixel of x to the next
  FloatLimits float_limits = {};                         // of a linear layer

  uint8_t* y_bytes() const { return gives_float_result() ? nullptr : static_cast<uint8_t*>(y.mutable_data_ptr()); }
  float* y_float() const { return gives_float_result() ? y.mutable_data_ptr<float>() : nullptr; }
  bool gives_float_result() const { return y.scalar_type() == ScalarType::Float; }
};

// The arguments of a call, in the order of the operator's schema.
struct ConvCall {
  Tensor x;
  int64_t x_zero_point;
  Tensor weight;
  Tensor zero_point_correction;
  Tensor scale;
  Tensor bias;
  std::vector<int64_t> kernel_size;
  std::vector<int64_t> stride;
  std::vector<int64_t> padding;
  std::vector<int64_t> dilation;
  int64_t groups;
  std::optional<Tensor> residual;
  double residual_scale;
  int64_t residual_zero_point;
  double y_scale;
  int64_t y_zero_point;
  int64_t quant_min;
  int64_t quant_max;
  ScalarType dtype;
};

// Here and below, Call has the fields that ConvCall and LinearCall share.
template <typename Call>
void check_vector(const char* op, const Call& c, const char* argument, const Tensor& values, ScalarType dtype) {
  if (values.scalar_type() != dtype) fail_dtype(op, argument, values.scalar_type(), name_of(dtype).c_str() + 6);
  if (values.dim() != 1 || values.numel() != c.scale.numel()) {
    fail(std::string(op) + ": " + argument + " has the wrong shape", shape_of(values),
         "[" + std::to_string(c.scale.numel()) + "]");
  }
  check_same_device(op, argument, values, c.x);
}

// Returns how many elements lie between the begins of successive pixels of x, where they are the same everywhere and the
// channels of each pixel lie side by side. It is more than the channels where x is a part of those of a dense tensor. Returns 0
// for all other strides.
inline int64_t pixel_step(const Tensor& x, bool channels_last) {
  const int64_t channel = channels_last ? 1 : x.dim() - 1, channels = x.size(channel);
  if (channels != 1 && x.stride(channel) != 1) return 0;
  int64_t step = -1, next = 0;  // next: the stride that the dimension around must have
  for (int64_t d = x.dim() - 1; d >= 0; --d) {
    if (d == channel || x.size(d) == 1) continue;
    if (step < 0) {
      step = x.stride(d);
    } else if (x.stride(d) != next) {
      return 0;
    }
    next = x.stride(d) * x.size(d);
  }
  return step < 0 ? channels : step < channels ? 0 : step;
}

// Whether the loop of such a convolution reads x where its pixels lie further apart than their channels.
using ReadsSteps = bool (*)(const ConvShape& shape);
inline bool reads_dense_alone(const ConvShape&) { return false; }

// Checks the weight, the vectors, the residual and the output, and allocates the result. Before it, check_input() has checked x,
// and the checks of geometry have given `shape` and `sizes`. x and the residual are copied only where their memory format is
// not that of the result, and x not where the loop reads it as it lies.
template <typename Call>
CheckedConv check_and_allocate(const char* op, const Call& c, const ConvShape& shape, const std::vector<int64_t>& sizes,
                               bool channels_last, ReadsSteps reads_steps) {
  if (c.weight.scalar_type() != ScalarType::Char) fail_dtype(op, "weight", c.weight.scalar_type(), "int8");
  const std::vector<int64_t> packed{shape.group_bundles() * shape.panels() * shape.k_blocks() * shape.k_groups(),
                                    kPanel, kKGroup};
  if (sizes_of(c.weight) != packed) {
    fail(std::string(op) + ": weight has the wrong shape", shape_of(c.weight), list_of(packed) + ", as pack_weight gives it");
  }
  check_same_device(op, "weight", c.weight, c.x);
  check_vector(op, c, "zero_point_correction", c.zero_point_correction, ScalarType::Int);
  check_vector(op, c, "bias", c.bias, ScalarType::Float);
  check_same_device(op, "scale", c.scale, c.x);
  const OutputQParams y_qparams =
      check_output_or_float(op, c.y_scale, c.y_zero_point, c.quant_min, c.quant_max, c.dtype);
  const int64_t step = reads_steps(shape) && c.x.numel() > 0 ? pixel_step(c.x, channels_last) : 0;
  CheckedConv conv{shape,
                   step > 0 ? c.x : to_memory_format(c.x, channels_last),
                   std::nullopt,  // residual, below
                   empty_as(c.x, sizes, channels_last, c.dtype),
                   row_major(c.weight),
                   row_major(c.zero_point_correction),
                   row_major(c.scale),
                   row_major(c.bias),
                   static_cast<int32_t>(c.x_zero_point),
                   1.0f,
                   0,
                   y_qparams};
  if (step > 0) conv.x_step = step;
  if (c.residual.has_value()) {
    check_quantized(op, "residual", *c.residual);
    check_same_device(op, "residual", *c.residual, c.x);
    if (sizes_of(*c.residual) != sizes) {
      fail(std::string(op) + ": residual has the wrong shape", shape_of(*c.residual), list_of(sizes) + ", as the result");
    }
    conv.residual_scale =
        check_qparams(op, "residual_", c.residual_scale, c.residual_zero_point, c.residual->scalar_type());
    conv.residual_zero_point = static_cast<int32_t>(c.residual_zero_point);
    conv.residual = to_memory_format(*c.residual, channels_last);
  }
  return conv;
}

template <typename Call>
void check_input(const char* op, const Call& c) {
  check_quantized(op, "x", c.x);
  const int64_t low = smallest_of(c.x.scalar_type());
  if (c.x_zero_point < low || c.x_zero_point > low + 255) {
    fail(std::string(op) + ": x_zero_point is out of range", c.x_zero_point,
         std::to_string(low) + " to " + std::to_string(low + 255));
  }
  if (c.scale.scalar_type() != ScalarType::Float) fail_dtype(op, "scale", c.scale.scalar_type(), "float32");
  if (c.scale.dim() != 1) {
    fail(std::string(op) + ": scale has the wrong shape", shape_of(c.scale), "[output channels]");
  }
}

inline void check_numbers(const char* op, const char* argument, const std::vector<int64_t>& values, size_t count,
                          int64_t least) {
  bool right = values.size() == count;
  for (const int64_t value : values) right = right && value >= least && value <= kInt32Max;
  if (!right) {
    fail(std::string(op) + ": " + argument + " is out of range", list_of(values),
         std::to_string(count) + " numbers of " + std::to_string(least) + " to " + std::to_string(kInt32Max));
  }
}

// Windows along one axis of x.
inline int64_t check_windows(const char* op, int64_t size, int64_t kernel, int64_t stride, int64_t padding,
                             int64_t dilation) {
  const int64_t padded = size + padding;
  const int64_t reach = dilation * (kernel - 1) + 1;
  if (padded < reach) {
    fail(std::string(op) + ": the window does not fit the padded input",
         std::to_string(reach) + " and " + std::to_string(padded), "a window that is no longer than the input");
  }
  return (padded - reach) / stride + 1;
}

inline void check_kernel_size(const char* op, const std::vector<int64_t>& kernel_size) {
  int64_t taps = 1;
  for (const int64_t size : kernel_size) taps = taps > kMaxTaps ? taps : taps * size;  // of numbers below 2^31
  if (taps > kMaxTaps) {
    fail(std::string(op) + ": kernel_size is too large", list_of(kernel_size),
         "at most " + std::to_string(kMaxTaps) + " elements");
  }
}

// Checks a call of an operator for so many spatial dimensions, 2 or 3, and allocates its result. An image is a volume of
// one plane.
inline CheckedConv checked_conv(const char* op, const ConvCall& c, size_t spatial,
                                ReadsSteps reads_steps = reads_dense_alone) {
  std::vector<int64_t> kernel_size = c.kernel_size, stride = c.stride, padding = c.padding, dilation = c.dilation;
  check_input(op, c);
  if (static_cast<size_t>(c.x.dim()) != spatial + 2) {
    fail(std::string(op) + ": x has the wrong shape", shape_of(c.x), spatial == 2 ? "[N, C, H, W]" : "[N, C, D, H, W]");
  }
  check_numbers(op, "kernel_size", kernel_size, spatial, 1);
  check_numbers(op, "stride", stride, spatial, 1);
  check_numbers(op, "padding", padding, 2 * spatial, 0);
  check_numbers(op, "dilation", dilation, spatial, 1);
  check_kernel_size(op, kernel_size);
  if (c.groups < 1 || c.x.size(1) % c.groups != 0 || c.scale.numel() % c.groups != 0) {
    fail(std::string(op) + ": groups is out of range", c.groups, "a divisor of the channels of x and of the result");
  }
  std::vector<int64_t> sizes = sizes_of(c.x);
  sizes[1] = c.scale.numel();
  for (size_t i = 0; i < spatial; ++i) {
    const int64_t sides = padding[2 * i] + padding[2 * i + 1];
    sizes[2 + i] = check_windows(op, c.x.size(2 + i), kernel_size[i], stride[i], sides, dilation[i]);
  }
  check_result_sizes(op, sizes);
  std::vector<int64_t> size(c.x.sizes().begin() + 2, c.x.sizes().end()), out(sizes.begin() + 2, sizes.end());
  if (spatial == 2) {
    for (std::vector<int64_t>* each : {&kernel_size, &stride, &dilation, &size, &out}) each->insert(each->begin(), 1);
    padding.insert(padding.begin(), 2, 0);
  }
  ConvShape shape{};
  shape.batch = c.x.size(0);
  shape.in_channels = c.x.size(1);
  shape.channels = sizes[1];
  shape.groups = c.groups;
  shape.planes = size[0], shape.height = size[1], shape.width = size[2];
  shape.out_planes = out[0], shape.out_height = out[1], shape.out_width = out[2];
  shape.kernel_planes = kernel_size[0], shape.kernel_height = kernel_size[1], shape.kernel_width = kernel_size[2];
  shape.stride_planes = stride[0], shape.stride_height = stride[1], shape.stride_width = stride[2];
  shape.front = padding[0], shape.top = padding[2], shape.left = padding[4];
  shape.dilation_planes = dilation[0], shape.dilation_height = dilation[1], shape.dilation_width = dilation[2];
  return check_and_allocate(op, c, shape, sizes, true, reads_steps);
}

}  // namespace fxquant
