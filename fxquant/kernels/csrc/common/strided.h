// Two tensors walked together with a dense result, whatever their strides. No torch: for loops and CUDA alike.
#pragma once
#include <cstdint>

namespace fxquant {

constexpr int kMaxDims = 64;  // as in torch's own iterators

// Dimensions in the order of the result's memory, outermost first; neighbours that every tensor steps through as
// through one are merged. The result is dense, so its offset is the running index.
struct StridedPair {
  int dims;  // at least 1
  int64_t size[kMaxDims];
  int64_t a_stride[kMaxDims];  // in elements; 0 where a is repeated
  int64_t b_stride[kMaxDims];
};

}  // namespace fxquant
