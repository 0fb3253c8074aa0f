#pragma once
#include "conv/conv_shape.h"
#include "cpu/isa.h"
#include "math/requantize.h"

namespace fxquant {

constexpr int64_t kStripRows = 24;  // pixels of a strip at most

// What a convolution reads and writes, and how it is divided into tasks.
//
// A task is one strip (at most kStripRows successive pixels of the result) times one N block (at most 64 channels). Of a
// depthwise convolution a strip lies in one row of a plane, or in two rows that read four rows of x.
struct ConvArgs {
  ConvShape shape;   // not empty
  const uint8_t* x;  // [batch, planes, height, width, depth]
  bool x_signed;
  const uint8_t* padding_values;  // [depth] times the zero point of x, as x stores it
  const int8_t* weight;    // packed
  const int32_t* zero_point_correction;    // [channels], as the next two
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

  template <typename Visitor>
  void pointers(Visitor& visit) const {
    visit.tensor(x);
    visit.array(padding_values, shape.depth);
    visit.tensor(weight);
    visit.tensor(zero_point_correction);
    visit.tensor(scale);
    visit.tensor(bias);
    visit.tensor(residual);
    visit.tensor(y);
    visit.tensor(y_float);
  }
  // A program may fuse a lookup table into the store of y: see fuse_tables.h.
  template <typename Visitor>
  void accepts_lookup(Visitor visit) const {
    visit(y, table, shape.rows() * shape.channels);
  }

  FXQ_INLINE int64_t tasks() const { return strips() * n_blocks(); }
  // So many successive tasks take a few microseconds, which is worth a thread.
  FXQ_INLINE int64_t grain() const {
    constexpr int64_t kWork = 1 << 19;  // products
    constexpr int64_t kEpilogue = 48;   // products that take as long as the epilogue of one output
    const int64_t outputs = shape.rows() * shape.group_bundles() * shape.panels() * kPanel;
    const int64_t products = shape.k_blocks() * shape.k_groups() * kKGroup * (shape.depthwise() ? 2 : 1);
    const int64_t work = outputs * (products + kEpilogue) / tasks();
    return work < kWork ? kWork / (work + 1) : 1;
  }

  // Rows of a plane that a strip of a depthwise convolution lies in.
  FXQ_INLINE int64_t strip_lines() const {
    const bool is_flat = shape.kernel_planes == 1 && shape.kernel_height < kKGroup;
    return is_flat && shape.stride_height == 1 && shape.dilation_height == 1 ? 2 : 1;
  }
  FXQ_INLINE int64_t plane_strips() const {
    return (shape.out_height + strip_lines() - 1) / strip_lines() * row_strips();
  }
  FXQ_INLINE int64_t row_strips() const { return (shape.out_width + kStripRows - 1) / kStripRows; }
  FXQ_INLINE int64_t strips() const {
    return shape.depthwise() ? shape.all_planes() * plane_strips() : (shape.rows() + kStripRows - 1) / kStripRows;
  }
  FXQ_INLINE int64_t n_blocks() const { return shape.group_bundles() * shape.n_blocks(); }
  // The order of tasks: so many successive strips with one N block, then with the next N block, then the next strips.
  FXQ_INLINE int64_t strips_per_round() const {
    constexpr int64_t kNear = 256 << 10;  // bytes that stay in the second cache
    const int64_t weight = shape.group_bundles() * shape.panels() * shape.panel_bytes();
    // Few rows share all weights, so each thread keeps to its channels. With many rows it keeps to its rows.
    if (weight > shape.rows() * (shape.depth + shape.channels)) return strips();
    return weight <= kNear ? 1 : 4;
  }

  // Bytes of scratch memory of a thread: pointers to the K blocks of a strip's pixels, and copies of input.
  FXQ_INLINE int64_t scratch() const { return shape.depthwise() ? window_bytes() : pointer_bytes() + copied_bytes(); }
  FXQ_INLINE int64_t pointer_bytes() const {  // [K blocks][kStripRows]
    return shape.k_blocks() * kStripRows * static_cast<int64_t>(sizeof(const uint8_t*));
  }
  FXQ_INLINE int64_t copied_bytes() const {  // with few channels: rows of taps, and as much as is read beyond each
    return shape.has_few_channels() ? kStripRows * shape.kernel_rows() * (shape.kernel_width * shape.depth + kKGroup)
                                    : 0;
  }
  // A depthwise convolution needs room for packed columns of the window, aligned to one of their lines, and a pointer and
  // a stride for each row of the window.
  FXQ_INLINE int64_t most_lines() const {
    constexpr int64_t kMost = 512;  // 32 KB
    const int64_t least = shape.k_groups() * shape.kernel_width;
    return least > kMost ? least : kMost;
  }
  FXQ_INLINE int64_t window_rows() const { return (shape.k_groups() + 1) * kKGroup; }
  FXQ_INLINE int64_t window_bytes() const {
    const int64_t of_row = static_cast<int64_t>(sizeof(const uint8_t*) + sizeof(int64_t));
    return (most_lines() + 1) * kPanel * kKGroup + window_rows() * of_row;
  }
};

}  // namespace fxquant

// Runs the tasks begin <= i < end.
FXQ_DECLARE_VNNI_LOOP(conv_loop, (const ConvArgs& args, int64_t begin, int64_t end, uint8_t* scratch))
