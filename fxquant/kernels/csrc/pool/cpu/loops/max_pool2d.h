#pragma once
#include "cpu/isa.h"
#include "cpu/row_parts.h"
#include "math/window.h"

namespace fxquant {

struct MaxPoolArgs {
  const void* x;
  void* y;
  bool is_signed;
  int64_t channels;  // innermost; 1 where the tensor is no channels_last one
  PoolAxis rows;
  PoolAxis columns;
  const Window* row_windows;     // [rows.outputs]
  const Window* column_windows;  // [columns.outputs]
  int64_t planes;

  int64_t tasks() const { return planes * rows.outputs; }

  template <typename Visitor>
  void pointers(Visitor& visit) const {
    visit.tensor(x);
    visit.tensor(y);
    visit.array(row_windows, rows.outputs);
    visit.array(column_windows, columns.outputs);
  }
  // A program may run rows of images by themselves: see chains.h.
  template <typename Visitor>
  void row_window(Visitor visit) const {
    if (channels == 1 || rows.kernel == 0) return;
    visit(x, y,
          RowWindow{planes, rows.size, rows.outputs, columns.size * channels, columns.outputs * channels, rows.kernel,
                    rows.stride, rows.dilation, rows.padding, 0, rows.kernel * columns.kernel});
  }
  // Makes this the pool of one image that gives these rows alone.
  void take_rows(const RowPart& part) {
    const int64_t x_row = columns.size * channels, y_row = columns.outputs * channels;
    const uint8_t* const own = static_cast<const uint8_t*>(x) + part.image * rows.size * x_row;
    x = part.x != nullptr ? part.x - part.x_first * x_row : own;  // Windows count rows of the whole image.
    uint8_t* const to = static_cast<uint8_t*>(y) + (part.image * rows.outputs + part.rows.first) * y_row;
    y = part.y != nullptr ? part.y : to;
    row_windows += part.rows.first;
    rows.outputs = part.rows.end - part.rows.first;
    planes = 1;
  }
};

}  // namespace fxquant

// The rows begin <= i < end of the output, counted through all planes. scratch: [columns.size * channels] of this thread.
FXQ_DECLARE_LOOP(max_pool2d_loop, (const MaxPoolArgs& args, int64_t begin, int64_t end, uint8_t* scratch))
