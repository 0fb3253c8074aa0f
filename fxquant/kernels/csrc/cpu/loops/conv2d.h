#pragma once
#include "../../common/conv_shape.h"
#include "../../math/requantize.h"
#include "../isa.h"

namespace fxquant {

constexpr int64_t kTileRows = 6;       // pixels of the result that a tile has
constexpr int64_t kTileChannels = 64;  // at most, unless depthwise

// All that a convolution reads and writes. No more memory is needed.
struct ConvArgs {
  ConvShape shape;   // not empty
  const uint8_t* x;  // [batch, height, width, depth]
  bool x_signed;
  const uint8_t* outside;  // [depth], what padding is: the zero point of x, as x stores it
  const int8_t* weight;    // packed
  const int32_t* start;    // [channels], as the next two
  const float* scale;
  const float* bias;
  const uint8_t* residual;  // as y, or null
  bool residual_signed;
  float residual_scale;
  int32_t residual_zero_point;
  uint8_t* y;   // [rows, channels], or null: then the result is
  float* real;  // as y, not rounded
  OutputGrid grid;

  int64_t tasks() const { return row_tiles() * blocks(); }
  // So many successive tasks take a few microseconds.
  int64_t grain() const {
    constexpr int64_t kWork = 1 << 19;  // products
    constexpr int64_t kEpilogue = 16;   // products that take as long as to requantize a sum
    const int64_t width = shape.panels() * kPanel / blocks();
    const int64_t work = kTileRows * width * (shape.pieces() * shape.quads() * kQuad + kEpilogue);  // a quad, if depthwise
    return work < kWork ? kWork / work : 1;
  }

  int64_t row_tiles() const { return (shape.rows() + kTileRows - 1) / kTileRows; }
  // Of channels. To find a depthwise convolution's pixels costs as much as to multiply them: all channels share that.
  int64_t blocks() const {
    return shape.depthwise ? 1 : (shape.panels() * kPanel + kTileChannels - 1) / kTileChannels;
  }
  // The order of tiles: so many successive ones in a column, then the next channels, then the next rows.
  // Few rows share all weights: let each thread keep to its channels. Many rows: to its rows.
  int64_t column() const {
    constexpr int64_t kColumn = 8;
    const int64_t weight = shape.panels() * shape.pieces() * shape.quads() * kPanel * kQuad;
    return weight > shape.rows() * (shape.depth + shape.channels) ? row_tiles() : kColumn;
  }
};

}  // namespace fxquant

// The tasks begin <= i < end.
FXQ_DECLARE_VNNI_LOOP(conv_loop, (const ConvArgs& args, int64_t begin, int64_t end))
