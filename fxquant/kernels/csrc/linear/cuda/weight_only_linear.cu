// Multiplies rows of floats by a weight of 4 or 8 bits. A thread computes one value of the result; those of neighbouring
// channels read neighbouring bytes. Products are summed in the order that cpu/loops/weight_only_linear.cpp says.
#include "linear/weight_only_linear.h"

#include "cuda/launch.h"

namespace fxquant {
namespace {

struct OneChannel {
  GroupedWeight w;
  const float* x;
  float* y;

  // Value k of a group of the channel, of which `bytes` and the zero point are given.
  FXQ_MEMBER float value(const uint8_t* bytes, int64_t k, int32_t zero_point) const {
    const int32_t byte = static_cast<int8_t>(bytes[(w.nibbles ? k / 2 : k) * kPanelChannels]);
    const int32_t q = !w.nibbles ? byte : k % 2 ? byte >> 4 : ((byte & 15) ^ 8) - 8;
    return static_cast<float>(q - zero_point);
  }

  FXQ_MEMBER void operator()(int64_t i) const {
    const int64_t channel = i % w.channels;
    const int64_t panel = channel / kPanelChannels;
    const float* row = x + i / w.channels * w.groups * w.group_size;
    float total = 0;
    for (int64_t g = 0; g < w.groups; ++g) {
      const int64_t bytes_of_group = w.nibbles ? (w.group_size + 1) / 2 : w.group_size;
      const uint8_t* bytes = w.bytes + (panel * w.groups + g) * bytes_of_group * kPanelChannels + channel % kPanelChannels;
      const int64_t qparams = g * w.panels * kPanelChannels + channel;
      const int32_t zero_point = w.zero_point == nullptr ? 0 : w.zero_point[qparams];
      for (int64_t first = 0; first < w.group_size; first += kStretch) {
        const int64_t end = w.group_size - first < kStretch ? w.group_size : first + kStretch;
        float partial[4] = {0, 0, 0, 0};
        for (int64_t k = first; k < end; k += 4) {
          for (int j = 0; j < 4; ++j) {
            if (k + j < end) partial[j] += row[k + j] * value(bytes, k + j, zero_point);
          }
        }
        total += ((partial[0] + partial[1]) + (partial[2] + partial[3])) * w.scale[qparams];
      }
      row += w.group_size;
    }
    y[i] = total + w.bias[channel];
  }
};

Tensor weight_only_linear_cuda(const WeightOnlyLinearCall& call) {
  const WeightOnlyLinear p = prepare_weight_only_linear(call);
  if (p.rows == 0) return p.y;
  for_each(p.y, p.y.numel(), OneChannel{p.shape, static_cast<const float*>(p.x.const_data_ptr()),
                                        static_cast<float*>(p.y.mutable_data_ptr())});
  return p.y;
}

}  // namespace

FXQ_CUDA_LIBRARY(m) { m.impl("weight_only_linear", FXQ_KERNEL(weight_only_linear_cuda)); }

}  // namespace fxquant
