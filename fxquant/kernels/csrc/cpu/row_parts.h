// Steps that can compute some rows of their result alone. No torch.
#pragma once
#include <cstdint>

namespace fxquant {

// How the rows of a result depend on the rows of x. Both are images, which lie one behind the other, row by row.
struct RowWindow {
  int64_t images;
  int64_t in_rows, out_rows;  // of an image
  int64_t in_row_bytes, out_row_bytes;
  int64_t kernel, stride, dilation, top;  // of the window, in rows; top: rows of padding above the image
  int64_t weight_bytes;
  int64_t products;  // for one byte of the result

  int64_t extent() const { return (kernel - 1) * dilation + 1; }  // rows from the first to the last of a window
  int64_t result_bytes() const { return images * out_rows * out_row_bytes; }
};

// Successive rows, of an image of the result or of x.
struct RowRange {
  int64_t first;
  int64_t end;
};

// The rows of x that lie in the windows of some rows of the result, without padding.
inline RowRange rows_read(const RowWindow& w, const RowRange& rows) {
  const int64_t first = rows.first * w.stride - w.top, end = (rows.end - 1) * w.stride - w.top + w.extent();
  return {first > 0 ? first : 0, end < w.in_rows ? end : w.in_rows};
}

// Rows of one image of a result that are to be computed, at least one.
struct RowPart {
  int64_t image;
  RowRange rows;
  const uint8_t* x;  // row number `x_first` of that image; null: the step reads its own x
  int64_t x_first;
  uint8_t* y;  // of the first of the rows; null: the step writes its own y
};

}  // namespace fxquant
