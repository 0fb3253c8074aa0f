#pragma once
#include "../../common/conv_shape.h"
#include "../../math/requantize.h"
#include "../isa.h"

namespace fxquant {

constexpr int64_t kTileRows = 6;       // pixels of the result that a tile has
constexpr int64_t kTileChannels = 64;  // at most, unless depthwise

struct ConvArgs {
  ConvShape shape;
  const uint8_t* x;
  bool x_signed;
  const int8_t* weight;  // packed
  const int32_t* start;  // [channels], as the next two
  const float* scale;
  const float* bias;
  const uint8_t* residual;  // as y, or null
  bool residual_signed;
  float residual_scale;
  int32_t residual_zero_point;
  uint8_t* y;   // [rows, channels], or null: then the result is
  float* real;  // as y, not rounded
  OutputGrid grid;
  // Pixels are read four channels at a time. These stand for those that x lacks, or that end where x ends.
  const uint8_t* outside;  // padding, [depth] and up to three more
  const uint8_t* last;     // the last pixel of x, as long
  // The order of tiles: so many successive ones in a column, then the next channels, then the next rows.
  int64_t column;

  int64_t row_tiles() const { return (shape.rows() + kTileRows - 1) / kTileRows; }
  // Of channels. To find a depthwise convolution's pixels costs as much as to multiply them: all channels share that.
  int64_t blocks() const {
    return shape.depthwise ? 1 : (shape.panels() * kPanel + kTileChannels - 1) / kTileChannels;
  }
};

}  // namespace fxquant

// The tiles begin <= i < end of row_tiles() * blocks().
FXQ_DECLARE_VNNI_LOOP(conv_loop, (const ConvArgs& args, int64_t begin, int64_t end))
