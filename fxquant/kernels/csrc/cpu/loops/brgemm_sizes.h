// Sizes of the blocks that the framework's kernels multiply. They are few, since each thread keeps compiled code for each
// size. No torch: for loops and bindings alike.
#pragma once
#include "common/layout.h"
#include "conv/conv_shape.h"

namespace fxquant {

constexpr int64_t kBrgemmRows = 64;
constexpr int64_t kBrgemmRowMultiple = 16;  // to which fewer rows are rounded up
constexpr int64_t kBrgemmDepth = 1024;
constexpr int64_t kBrgemmDepthMultiple = 64;  // to which a K that changes from call to call is rounded up
constexpr int64_t kBrgemmColumns = kNBlockPanels * kPanel;

// Bytes of a row of a chunk of a packed LHS: whole cache lines.
FXQ_INLINE int64_t lhs_line_bytes(int64_t depth) {
  return depth < kBrgemmDepth ? (depth + kCacheLine - 1) / kCacheLine * kCacheLine : kBrgemmDepth;
}
// Bytes of memory for a packed LHS, which begins with a cache line.
FXQ_INLINE int64_t lhs_buffer_bytes(int64_t rows, int64_t depth) {
  return (depth + kBrgemmDepth - 1) / kBrgemmDepth * rows * lhs_line_bytes(depth) + kCacheLine;
}

}  // namespace fxquant
