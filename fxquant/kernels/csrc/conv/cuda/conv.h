// Runs what conv/conv.h prepared: one thread per element of the result.
#pragma once
#include "conv/conv.h"
#include "cuda/launch.h"
#include "math/per_token.h"

namespace fxquant {

struct ConvKernel {
  ConvShape s;
  // In the order of the packed weight:
  bool depthwise;
  int64_t group_bundle_channels, group_bundle_in_channels, group_bundle_panels, group_bundle_n_blocks;
  int64_t panel;                  // bytes
  int64_t row_step, column_step;  // of taps, in bytes that one output channel is multiplied by
  const uint8_t* x;
  uint8_t x_flip;  // int8 as uint8, 128 higher
  uint8_t padding_value;
  const int8_t* weight;
  const int32_t* zero_point_correction;
  const float* scale;
  const float* bias;
  const uint8_t* residual;
  bool residual_signed;
  float residual_scale;
  int32_t residual_zero_point;
  uint8_t* y;  // or null: then the result is
  float* y_float;
  OutputQParams y_qparams;
  const float* row_scale = nullptr;  // as ConvArgs of the CPU has them
  const int32_t* row_zero_point = nullptr;
  int64_t row_qparams_step = 1;  // row_step of ConvArgs
  const int32_t* weight_sums = nullptr;
  FloatLimits float_limits = {};

  // In the order of memory: channels, columns, rows, planes, volumes.
  FXQ_MEMBER void operator()(int64_t i) const {
    const int64_t c = i % s.channels;
    const int64_t row = i / s.channels;
    const int64_t left = row % s.out_width * s.stride_width - s.left;
    const int64_t plane = row / s.out_width / s.out_height;
    const int64_t image = plane / s.out_planes;
    const int64_t front = plane % s.out_planes * s.stride_planes - s.front;
    const int64_t top = row / s.out_width % s.out_height * s.stride_height - s.top;
    const int64_t group = c / (s.channels / s.groups), in_channels = s.in_channels / s.groups;
    const int64_t bundle = c / group_bundle_channels, place = c % group_bundle_channels;
    const int64_t of_bundle = place / kPanel;
    const int64_t block = ((of_bundle + 1) * group_bundle_n_blocks - 1) / group_bundle_panels;
    const int64_t first_panel = block * group_bundle_panels / group_bundle_n_blocks;
    const int64_t width =
        (block + 1) * group_bundle_panels / group_bundle_n_blocks - first_panel;  // panels of the block
    const int8_t* w = weight + (bundle * group_bundle_panels + first_panel) * panel +
                      ((of_bundle - first_panel) * kPanel + place % kPanel) * kKGroup;
    const int64_t first = depthwise ? 0 : group * in_channels - bundle * group_bundle_in_channels;
    int32_t sum = zero_point_correction[c];
    for (int64_t row_of_taps = 0; row_of_taps < s.kernel_planes * s.kernel_height; ++row_of_taps) {
      const int64_t d = front + row_of_taps / s.kernel_height * s.dilation_planes;
      const int64_t h = top + row_of_taps % s.kernel_height * s.dilation_height;
      for (int64_t column = 0; column < s.kernel_width; ++column) {
        const int64_t v = left + column * s.dilation_width;
        const bool inside = d >= 0 && d < s.planes && h >= 0 && h < s.height && v >= 0 && v < s.width;
        const uint8_t* pixel = x + (((image * s.planes + d) * s.height + h) * s.width + v) * s.in_channels + group * in_channels;
        for (int64_t k = 0; k < in_channels; ++k) {
          const int32_t value = (inside ? pixel[k] : padding_value) ^ x_flip;
          const int64_t at = first + row_of_taps * row_step + column * column_step + k;
          sum += value * w[at / kKGroup * width * kPanel * kKGroup + at % kKGroup];
        }
      }
    }
    const float scaled =
        row_scale == nullptr
            ? static_cast<float>(sum) * scale[c]
            : per_token_value(sum, row_scale[row * row_qparams_step], row_zero_point[row * row_qparams_step],
                              weight_sums[c], scale[c]);
    float real = scaled + bias[c];
    if (residual != nullptr) {
      const int32_t flip = residual_signed ? 0x80 : 0;  // (q ^ 0x80) - 128 is q as an int8
      real += dequantize((residual[i] ^ flip) - flip, residual_scale, residual_zero_point);
    }
    if (y_float != nullptr) {
      y_float[i] = clamp_float(real, float_limits);
    } else {
      y[i] = requantize(real, y_qparams);
    }
  }
};

inline Tensor conv_cuda(const CheckedConv& c) {
  const auto bytes = [](const Tensor& t) { return static_cast<const uint8_t*>(t.const_data_ptr()); };
  const ConvShape& s = c.shape;
  const int64_t k_block_bytes = s.k_groups() * kKGroup;
  const int64_t row_step = s.depthwise() ? 1 : s.has_few_channels() ? k_block_bytes : s.kernel_width * k_block_bytes;
  const int64_t column_step = s.has_few_channels() ? s.in_channels : k_block_bytes;
  ConvKernel kernel{s, s.depthwise(), s.group_bundle_channels(), s.group_bundle_in_channels(), s.panels(),
                  s.n_blocks(), s.panel_bytes(), row_step, column_step, bytes(c.x),
                  static_cast<uint8_t>(c.x.scalar_type() == ScalarType::Char ? 0x80 : 0),
                  static_cast<uint8_t>(c.x_zero_point), static_cast<const int8_t*>(c.weight.const_data_ptr()),
                  c.zero_point_correction.const_data_ptr<int32_t>(), c.scale.const_data_ptr<float>(),
                  c.bias.const_data_ptr<float>(), c.residual.has_value() ? bytes(*c.residual) : nullptr,
                  c.residual.has_value() && c.residual->scalar_type() == ScalarType::Char, c.residual_scale,
                  c.residual_zero_point, c.y_bytes(), c.y_float(), c.y_qparams};
  kernel.float_limits = c.float_limits;
  if (c.row_qparams.has_value()) {
    kernel.row_scale = c.row_qparams->scale.const_data_ptr<float>();
    kernel.row_zero_point = c.row_qparams->zero_point.const_data_ptr<int32_t>();
    kernel.row_qparams_step = c.row_qparams->step;
    kernel.weight_sums = c.row_qparams->weight_sums.const_data_ptr<int32_t>();
  }
  for_each(c.x, c.y.numel(), kernel);
  return c.y;
}

}  // namespace fxquant
