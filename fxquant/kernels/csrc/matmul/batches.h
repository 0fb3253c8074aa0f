// Where the matrices of a batch lie, whatever its strides. No torch: for loops and CUDA alike.
#pragma once
#include "common/strided.h"
#include "math/affine.h"

namespace fxquant {

// Some leading dimensions of a tensor, in the order of the dimensions.
struct Batches {
  int dims;
  int64_t size[kMaxDims];
  int64_t stride[kMaxDims];  // 0 where what is stepped through is repeated
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
