#pragma once
#include "conv/conv_shape.h"
#include "cpu/isa.h"
#include "math/requantize.h"

namespace fxquant {

constexpr int64_t kStripRows = 24;  // pixels of the result that a task has at most

// All that a convolution reads and writes.
struct ConvArgs {
  ConvShape shape;   // not empty
  const uint8_t* x;  // [batch, planes, height, width, depth]
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
  const uint8_t* table = nullptr;  // [256], or null: what stands in y for each byte of the result

  template <typename Visitor>
  void pointers(Visitor& visit) const {
    visit.tensor(x);
    visit.array(outside, shape.depth);
    visit.tensor(weight);
    visit.tensor(start);
    visit.tensor(scale);
    visit.tensor(bias);
    visit.tensor(residual);
    visit.tensor(y);
    visit.tensor(real);
  }
  // A program may have the result looked up at once: see recorder.h.
  template <typename Visitor>
  void looks_up(Visitor visit) const {
    visit(y, table, shape.rows() * shape.channels);
  }

  FXQ_INLINE int64_t tasks() const { return strips() * blocks(); }
  // So many successive tasks take a few microseconds.
  FXQ_INLINE int64_t grain() const {
    constexpr int64_t kWork = 1 << 19;  // products
    constexpr int64_t kEpilogue = 48;   // products that take as long as to requantize a sum
    const int64_t sums = shape.rows() * shape.bundles() * shape.panels() * kPanel;
    const int64_t products = shape.pieces() * shape.quads() * kQuad * (shape.depthwise() ? 2 : 1);
    const int64_t work = sums * (products + kEpilogue) / tasks();
    return work < kWork ? kWork / (work + 1) : 1;
  }

  // A strip of a depthwise convolution lies in one row of a plane, or in two that are made of four rows of x.
  FXQ_INLINE int64_t strip_lines() const {
    const bool is_flat = shape.kernel_planes == 1 && shape.kernel_height < kQuad;
    return is_flat && shape.stride_height == 1 && shape.dilation_height == 1 ? 2 : 1;
  }
  FXQ_INLINE int64_t plane_strips() const { return (shape.out_height + strip_lines() - 1) / strip_lines() * segments(); }
  FXQ_INLINE int64_t segments() const { return (shape.out_width + kStripRows - 1) / kStripRows; }
  FXQ_INLINE int64_t strips() const {
    return shape.depthwise() ? shape.all_planes() * plane_strips() : (shape.rows() + kStripRows - 1) / kStripRows;
  }
  FXQ_INLINE int64_t blocks() const { return shape.bundles() * shape.blocks(); }
  // The order of tasks: so many successive strips of a block, then those of the next block, then the next strips.
  FXQ_INLINE int64_t column() const {
    constexpr int64_t kNear = 256 << 10;  // bytes that stay in the second cache
    const int64_t weight = shape.bundles() * shape.panels() * shape.panel();
    // Few rows share all weights: let each thread keep to its channels. Many rows: to its rows.
    if (weight > shape.rows() * (shape.depth + shape.channels)) return strips();
    return weight <= kNear ? 1 : 4;
  }

  // Bytes of memory that a thread needs: for where a strip's pixels lie, and for what is brought together of them.
  FXQ_INLINE int64_t scratch() const { return shape.depthwise() ? window_bytes() : pointer_bytes() + copied_bytes(); }
  FXQ_INLINE int64_t pointer_bytes() const {  // [pieces][kStripRows]
    return shape.pieces() * kStripRows * static_cast<int64_t>(sizeof(const uint8_t*));
  }
  FXQ_INLINE int64_t copied_bytes() const {  // of few channels: rows of taps, and as much as is read beyond each
    return shape.has_few() ? kStripRows * shape.kernel_rows() * (shape.kernel_width * shape.depth + kQuad) : 0;
  }
  // Of a depthwise convolution: lines of columns from the begin of one on, and of each row of the window its place and step.
  FXQ_INLINE int64_t most_lines() const {
    constexpr int64_t kMost = 512;  // 32 KB
    const int64_t least = shape.quads() * shape.kernel_width;
    return least > kMost ? least : kMost;
  }
  FXQ_INLINE int64_t window_rows() const { return (shape.quads() + 1) * kQuad; }
  FXQ_INLINE int64_t window_bytes() const {
    const int64_t of_row = static_cast<int64_t>(sizeof(const uint8_t*) + sizeof(int64_t));
    return (most_lines() + 1) * kPanel * kQuad + window_rows() * of_row;
  }
};

}  // namespace fxquant

// The tasks begin <= i < end.
FXQ_DECLARE_VNNI_LOOP(conv_loop, (const ConvArgs& args, int64_t begin, int64_t end, uint8_t* scratch))
