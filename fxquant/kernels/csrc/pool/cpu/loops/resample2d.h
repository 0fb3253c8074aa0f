#pragma once
#include "cpu/isa.h"
#include "math/requantize.h"

namespace fxquant {

struct ResampleArgs {
  const void* x;
  uint8_t* y;
  bool is_signed;
  int64_t channels;  // innermost; 1 where the tensor is no channels_last one
  int64_t height;
  int64_t out_height;
  int64_t width;
  int64_t out_width;
  const int64_t* row_start;      // [out_height]
  const float* row_weight;       // [out_height, row_taps]
  int64_t row_taps;
  const int64_t* column_start;   // [out_width]
  const float* column_weight;    // [out_width, column_taps]
  int64_t column_taps;
  float x_scale;
  int32_t x_zero_point;
  OutputQParams y_qparams;

  template <typename Visitor>
  void pointers(Visitor& visit) const {
    visit.tensor(x);
    visit.tensor(y);
    visit.tensor(row_start);
    visit.tensor(row_weight);
    visit.tensor(column_start);
    visit.tensor(column_weight);
  }
};

}  // namespace fxquant

// The rows begin <= i < end of the output, counted through all planes. row: room for width * channels floats.
FXQ_DECLARE_LOOP(resample2d_loop, (const ResampleArgs& args, float* row, int64_t begin, int64_t end))
