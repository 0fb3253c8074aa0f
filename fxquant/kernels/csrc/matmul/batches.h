// Offsets of the matrices of a batch, whatever its strides. No torch: for loops and CUDA alike.
#pragma once
#include "common/strided.h"
#include "math/affine.h"

namespace fxquant {

// The leading dimensions of a tensor.
struct Batches {
  int dims;
  int64_t size[kMaxDims];
  int64_t stride[kMaxDims];  // 0 along a dimension that is broadcast
};

FXQ_HOST_DEVICE int64_t place_of(const Batches& batches, int64_t i) {
  int64_t place = 0;
  for (int d = batches.dims - 1; d >= 0; --d) {
    place += i % batches.size[d] * batches.stride[d];
    i /= batches.size[d];
  }
  return place;
}

}  // namespace fxquant
