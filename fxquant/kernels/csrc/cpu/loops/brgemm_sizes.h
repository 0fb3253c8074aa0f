// Sizes of blocks that the framework's kernels multiply: a few fixed ones, since each thread keeps code for each of them.
// No torch: for loops and bindings alike.
#pragma once
#include "conv/conv_shape.h"

namespace fxquant {

constexpr int64_t kBrgemmRows = 64;
constexpr int64_t kBrgemmRowMultiple = 16;  // of what is left, rounded up
constexpr int64_t kBrgemmDepth = 1024;
constexpr int64_t kBrgemmDepthMultiple = 64;  // of a depth that changes from call to call
constexpr int64_t kBrgemmColumns = kNBlockPanels * kPanel;

constexpr int64_t kCacheLine = 64;

// Bytes of a row of what is gathered: lines of the cache.
FXQ_INLINE int64_t lhs_line_bytes(int64_t depth) {
  return depth < kBrgemmDepth ? (depth + kCacheLine - 1) / kCacheLine * kCacheLine : kBrgemmDepth;
}
// Bytes of memory for so many rows, and to begin with a line.
FXQ_INLINE int64_t lhs_buffer_bytes(int64_t rows, int64_t depth) {
  return (depth + kBrgemmDepth - 1) / kBrgemmDepth * rows * lhs_line_bytes(depth) + kCacheLine;
}

}  // namespace fxquant
