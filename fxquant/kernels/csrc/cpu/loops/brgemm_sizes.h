// Sizes of the blocks that the framework's kernels multiply. They are few, since each thread keeps compiled code for each
// size. No torch: for loops and bindings alike.
#pragma once
#include "common/layout.h"
#include "conv/conv_shape.h"

namespace fxquant {

constexpr int64_t kBrgemmRows = 64;
constexpr int64_t kBrgemmRowMultiple = 16;  // to which fewer rows are rounded up
constexpr int64_t kBrgemmK = 1024;
constexpr int64_t kBrgemmKMultiple = 64;  // to which a K that changes from call to call is rounded up
constexpr int64_t kBrgemmColumns = kNBlockPanels * kPanel;

// Bytes of a row of a chunk of a packed LHS: whole cache lines.
FXQ_INLINE int64_t lhs_row_bytes(int64_t k_size) {
  return k_size < kBrgemmK ? (k_size + kCacheLine - 1) / kCacheLine * kCacheLine : kBrgemmK;
}
// Bytes of memory for a packed LHS, which begins with a cache line.
FXQ_INLINE int64_t lhs_buffer_bytes(int64_t rows, int64_t k_size) {
  return (k_size + kBrgemmK - 1) / kBrgemmK * rows * lhs_row_bytes(k_size) + kCacheLine;
}

}  // namespace fxquant
