#pragma once
#include "conv/conv_shape.h"
#include "cpu/isa.h"
#include "math/requantize.h"

namespace fxquant {

// What a convolution reads and writes. Each loop of convolutions adds how it divides this into tasks.
struct ConvArgs {
  ConvShape shape;   // not empty
  const uint8_t* x;  // [batch, planes, height, width, in_channels]
  bool x_signed;
  const uint8_t* padding_values;  // [in_channels] times the zero point of x, as x stores it
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
  const uint8_t* table = nullptr;  // [256], or null: a lookup table for the bytes of y
  // Of a linear layer whose rows have qparams of their own: the sums are then corrected by them, not by one zero point.
  const float* row_scale = nullptr;         // [rows], or null
  const int32_t* row_zero_point = nullptr;  // [rows]
  const int32_t* weight_sums = nullptr;     // [channels]

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
  // A program may fuse a lookup table into the loop, which then looks up the bytes of the task before: see fuse_tables.h.
  template <typename Visitor>
  void accepts_lookup(Visitor visit) const {
    visit(y, table, shape.out_pixels() * shape.channels);
  }
};

}  // namespace fxquant
