#include <torch/csrc/stable/library.h>

#include <tuple>

#include "../common/moving_average.h"
#include "launch.h"
#include "numbers.h"

namespace fxquant {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostParts = 1024;  // blocks that share one channel

// Keys of the extremes of each channel, no value at first.
struct Keys {
  int32_t* low;
  int32_t* high;
  int64_t* nonfinite;
};

struct Begin {
  Keys keys;

  __device__ void operator()(int64_t c) const {
    keys.low[c] = INT32_MAX;
    keys.high[c] = INT32_MIN;
  }
};

// Block (p, c) takes part p of channel c: its elements lie in outer stretches of inner ones.
template <typename T>
__global__ void measure(const T* x, Layout layout, Keys keys) {
  const int64_t count = layout.outer * layout.inner;
  for (int64_t c = blockIdx.y; c < layout.channels; c += gridDim.y) {
    int32_t low = INT32_MAX;
    int32_t high = INT32_MIN;
    int64_t nonfinite = 0;
    for (int64_t j = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x; j < count;
         j += static_cast<int64_t>(gridDim.x) * kThreads) {
      const int64_t i = ((j / layout.inner) * layout.channels + c) * layout.inner + j % layout.inner;
      const float value = static_cast<float>(Number<T>::load(x[i]));
      if (is_finite(value)) {
        const int32_t key = key_of(value);
        low = key < low ? key : low;
        high = key > high ? key : high;
      } else {
        ++nonfinite;
      }
    }
    for (int distance = 16; distance > 0; distance /= 2) {
      const int32_t other_low = __shfl_xor_sync(0xffffffffu, low, distance);
      const int32_t other_high = __shfl_xor_sync(0xffffffffu, high, distance);
      low = other_low < low ? other_low : low;
      high = other_high > high ? other_high : high;
    }
    if (threadIdx.x % 32 == 0) {
      atomicMin(keys.low + c, low);
      atomicMax(keys.high + c, high);
    }
    if (nonfinite > 0) {
      atomicAdd(reinterpret_cast<unsigned long long*>(keys.nonfinite), static_cast<unsigned long long>(nonfinite));
    }
  }
}

struct Finish {
  Keys keys;
  const float* before_low;
  const float* before_high;
  GridChoice choice;
  float* low;
  float* high;
  float* scale;
  int32_t* zero_point;

  __device__ void operator()(int64_t c) const {
    const bool seen = keys.low[c] <= keys.high[c];
    const Range batch{seen ? of_key(keys.low[c]) : float_of_bits(kInfinity),
                      seen ? of_key(keys.high[c]) : float_of_bits(kInfinity | 0x80000000u)};
    const Range now = blend({before_low[c], before_high[c]}, batch, choice.averaging);
    const ChosenGrid grid = choose_grid(now, choice);
    low[c] = now.low;
    high[c] = now.high;
    scale[c] = grid.scale;
    zero_point[c] = grid.zero_point;
  }
};

struct Call {
  const Tensor& x;
  Layout layout;
  Keys keys;

  template <typename T>
  void go() const {
    const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
    void* stream = nullptr;
    STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(x.get_device_index(), &stream));
    const int64_t per_channel = std::max<int64_t>(1, (layout.outer * layout.inner + kThreads - 1) / kThreads);
    const int64_t parts = std::min(per_channel, std::max<int64_t>(1, kMostParts / layout.channels));
    const dim3 blocks(static_cast<unsigned>(parts), static_cast<unsigned>(std::min<int64_t>(layout.channels, 65535)));
    measure<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(static_cast<const T*>(x.const_data_ptr()),
                                                                        layout, keys);
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  }
};

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> moving_average_qparams_cuda(
    const Tensor& x_, const Tensor& running_min, const Tensor& running_max, std::optional<int64_t> axis,
    double averaging, double eps, int64_t quant_min, int64_t quant_max, std::optional<int64_t> middle) {
  const MovingAverage call(x_, running_min, running_max, axis, averaging, eps, quant_min, quant_max, middle);
  const Tensor x = dense(x_);
  const MovingAverage::Results results = call.results();
  const int64_t sizes[] = {2, call.channels};
  const Tensor space = torch::stable::new_empty(x, {sizes, 2}, ScalarType::Int);
  int32_t* first = space.mutable_data_ptr<int32_t>();
  const Keys keys{first, first + call.channels, results.nonfinite.mutable_data_ptr<int64_t>()};
  for_each(x, call.channels, Begin{keys});
  with_float(call.type, Call{x, layout_of(x, call.axis), keys});
  for_each(x, call.channels,
           Finish{keys, call.running_min.const_data_ptr<float>(), call.running_max.const_data_ptr<float>(),
                  call.choice, results.low.mutable_data_ptr<float>(), results.high.mutable_data_ptr<float>(),
                  results.scale.mutable_data_ptr<float>(), results.zero_point.mutable_data_ptr<int32_t>()});
  return {results.low, results.high, results.scale, results.zero_point, results.nonfinite};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fxquant, CUDA, m) {
  m.impl("moving_average_qparams", TORCH_BOX(&moving_average_qparams_cuda));
}

}  // namespace fxquant
