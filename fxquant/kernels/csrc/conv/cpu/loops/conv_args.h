#pragma once
#include "conv/conv_shape.h"
#include "cpu/isa.h"
#include "cpu/row_parts.h"
#include "math/requantize.h"

namespace fxquant {

// What a convolution reads and writes. Each loop of convolutions adds how it divides this into tasks.
struct ConvArgs {
  ConvShape shape;   // not empty
  const uint8_t* x;  // [batch, planes, height, width, in_channels]
  int64_t x_step;    // bytes from a pixel of x to the next: more than in_channels where x is a part of the channels of a tensor
  bool x_signed;
  const uint8_t* padding_values;  // [in_channels], each the zero point of x, stored as x is
  const int8_t* weight;           // packed
  const int32_t* zero_point_correction;  // [channels], as the next two
  const float* scale;
  const float* bias;
  const uint8_t* residual;  // as y, or null
  bool residual_signed;
  float residual_scale;
  int32_t residual_zero_point;
  uint8_t* y;      // [rows, channels]; null: y_float is wanted
  float* y_float;  // as y, not rounded
  OutputQParams y_qparams;
  FloatLimits float_limits = {};   // of y_float, in linear layers
  const uint8_t* table = nullptr;  // [256], or null: a lookup table for the bytes of y
  // Of a linear layer whose rows have qparams of their own: the sums are then corrected by them, not by one zero point.
  const float* row_scale = nullptr;         // [rows], or null
  const int32_t* row_zero_point = nullptr;  // [rows]
  int64_t row_step = 1;                     // 0: all rows have those of the first one
  const int32_t* weight_sums = nullptr;     // [channels]

  // For the recorder: each pointer, once. A program sets `table` itself.
  template <typename Visitor>
  void pointers(Visitor& visit) const {
    visit.tensor(x);
    visit.array(padding_values, shape.in_channels);
    visit.tensor(weight);
    visit.tensor(zero_point_correction);
    visit.tensor(scale);
    visit.tensor(bias);
    visit.tensor(residual);
    visit.tensor(y);
    visit.tensor(y_float);
    visit.tensor(row_scale);
    visit.tensor(row_zero_point);
    visit.tensor(weight_sums);
  }
  // A program may fuse a lookup table into the loop, in which each task then looks up the bytes that the thread's preceding
  // task stored: see fuse_tables.h.
  template <typename Visitor>
  void accepts_lookup(Visitor visit) const {
    visit(y, table, shape.out_pixels() * shape.channels);
  }
  // A program may run rows of images by themselves: see chains.h.
  template <typename Visitor>
  void row_window(Visitor visit) const {
    const ConvShape& s = shape;
    if (s.planes != 1 || s.out_planes != 1 || s.kernel_planes != 1 || y == nullptr || row_scale != nullptr) return;
    if (x_step != s.in_channels) return;
    const int64_t products = s.k_blocks() * s.k_block_bytes();
    visit(x, y,
          RowWindow{s.batch, s.height, s.out_height, s.width * s.in_channels, s.out_width * s.channels, s.kernel_height,
                    s.stride_height, s.dilation_height, s.top, products * s.channels, products});
  }
  // Makes this the convolution of one image that gives these rows alone.
  void take_rows(const RowPart& part) {
    ConvShape& s = shape;
    const RowRange& rows = part.rows;
    const int64_t x_row = s.width * s.in_channels, begin = rows.first * s.stride_height - s.top;
    const int64_t end = begin + (rows.end - rows.first - 1) * s.stride_height + (s.kernel_height - 1) * s.dilation_height + 1;
    const int64_t from = begin > 0 ? begin : 0, to = end < s.height ? end : s.height;
    const int64_t at = (part.image * s.out_height + rows.first) * s.out_width * s.channels;
    x = part.x != nullptr ? part.x + (from - part.x_first) * x_row : x + (part.image * s.height + from) * x_row;
    y = part.y != nullptr ? part.y : y + at;
    if (residual != nullptr) residual += at;
    s.batch = 1;
    s.top = from - begin;
    s.height = to - from;
    s.out_height = rows.end - rows.first;
  }
};

}  // namespace fxquant
