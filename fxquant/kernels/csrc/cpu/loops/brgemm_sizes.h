// Sizes of blocks that the framework's kernels multiply: a few fixed ones, since each thread keeps code for each of them.
// No torch: for loops and bindings alike.
#pragma once
#include "conv/conv_shape.h"

namespace fxquant {

constexpr int64_t kProductRows = 64;
constexpr int64_t kProductTail = 16;  // of what is left, rounded up
constexpr int64_t kProductDepth = 1024;
constexpr int64_t kProductMultiple = 64;  // of a depth that changes from call to call
constexpr int64_t kProductColumns = kBlockPanels * kPanel;

constexpr int64_t kCacheLine = 64;

// Bytes of a row of what is gathered: lines of the cache.
FXQ_INLINE int64_t gathered_line(int64_t depth) {
  return depth < kProductDepth ? (depth + kCacheLine - 1) / kCacheLine * kCacheLine : kProductDepth;
}
// Bytes of memory for so many rows, and to begin with a line.
FXQ_INLINE int64_t gathered_bytes(int64_t rows, int64_t depth) {
  return (depth + kProductDepth - 1) / kProductDepth * rows * gathered_line(depth) + kCacheLine;
}

}  // namespace fxquant
