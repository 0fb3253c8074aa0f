// Which elements of an axis one output of a pooling reads. The formulas of fxquant/kernels/pool/windows.py.
#pragma once
#include <cstdint>

#include "math/affine.h"

namespace fxquant {

struct PoolAxis {
  int64_t size;     // elements of the input
  int64_t outputs;  // windows
  int64_t kernel;   // elements of a window; 0: the windows divide the axis (adaptive), and the rest is unused
  int64_t stride;
  int64_t padding;
  int64_t dilation;
};

struct Window {
  int64_t start;   // first real element
  int64_t count;   // real elements, dilation apart
  int64_t extent;  // elements, those of the padding too, but none beyond it
};

FXQ_HOST_DEVICE Window window_of(const PoolAxis& axis, int64_t i) {
  if (axis.kernel == 0) {
    const int64_t start = i * axis.size / axis.outputs;
    const int64_t count = ((i + 1) * axis.size + axis.outputs - 1) / axis.outputs - start;
    return {start, count, count};
  }
  const int64_t first = i * axis.stride - axis.padding;
  const int64_t skipped = first < 0 ? (-first + axis.dilation - 1) / axis.dilation : 0;
  const int64_t start = first + skipped * axis.dilation;
  const int64_t fit = start < axis.size ? (axis.size - 1 - start) / axis.dilation + 1 : 0;
  const int64_t left = axis.kernel > skipped ? axis.kernel - skipped : 0;
  const int64_t padded = axis.size + axis.padding - first;
  return {start, fit < left ? fit : left, axis.kernel < padded ? axis.kernel : padded};
}

}  // namespace fxquant
