// How a tensor lies in memory, as seen by a kernel. No torch: shared by bindings, loops and CUDA.
#pragma once
#include <cstdint>

namespace fxquant {

constexpr int64_t kCacheLine = 64;  // bytes

// A dense tensor and an axis, in the order of memory: [outer, channels, inner]. Per tensor: channels == 1.
// With channels_last and the axis of the channels, inner == 1.
struct Layout {
  int64_t outer;
  int64_t channels;
  int64_t inner;

  int64_t numel() const { return outer * channels * inner; }
};

}  // namespace fxquant
