#include <torch/csrc/stable/library.h>

#include <tuple>

#include "../common/histogram.h"
#include "launch.h"
#include "numbers.h"

namespace fxquant {
namespace {

constexpr int64_t kThreads = 256;
constexpr int64_t kSharedBins = 8192;  // 32 KB of counters; larger histograms are counted in global memory

// One call, as kernels get it. Nothing is read on the host, which would wait for the GPU.
template <typename T>
struct Call {
  const T* x;
  int64_t rows;
  int64_t length;
  int64_t bins;
  const int64_t* old_counts;
  const float* old_low;
  const float* old_high;
  int64_t* counts;
  int32_t* low;   // keys at first, then the bits of floats
  int32_t* high;
  int64_t* nonfinite;
};

template <typename T>
__device__ float real(const T& x) {
  return static_cast<float>(Number<T>::load(x));
}

__device__ void add(int64_t* counter, int64_t count) {
  atomicAdd(reinterpret_cast<unsigned long long*>(counter), static_cast<unsigned long long>(count));
}

template <typename T>
struct Begin {
  Call<T> call;

  __device__ void operator()(int64_t row) const {
    call.low[row] = key_of(call.old_low[row]);
    call.high[row] = key_of(call.old_high[row]);
  }
};

// Block (b, r) measures part b of row r.
template <typename T>
__global__ void measure(Call<T> call) {
  for (int64_t row = blockIdx.y; row < call.rows; row += gridDim.y) {
    const T* x = call.x + row * call.length;
    int32_t low = key_of(float_of_bits(kInfinity));
    int32_t high = key_of(float_of_bits(kInfinity | 0x80000000u));
    int64_t nonfinite = 0;
    for (int64_t i = blockIdx.x * kThreads + threadIdx.x; i < call.length; i += gridDim.x * kThreads) {
      const float value = real(x[i]);
      if (is_finite(value)) {
        const int32_t key = key_of(value + 0.0f);  // -0.0 becomes 0.0
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
      atomicMin(call.low + row, low);
      atomicMax(call.high + row, high);
    }
    if (nonfinite > 0) add(call.nonfinite, nonfinite);
  }
}

// Counts part b of row r, and lets block (0, r) bring over what was counted before.
template <typename T>
__global__ void count(Call<T> call) {
  extern __shared__ uint32_t shared[];
  const bool near = call.bins <= kSharedBins;
  for (int64_t row = blockIdx.y; row < call.rows; row += gridDim.y) {
    const T* x = call.x + row * call.length;
    int64_t* counts = call.counts + row * call.bins;
    const BinWindow window = window_of(of_key(call.low[row]), of_key(call.high[row]), call.bins);
    const float inverse = inverse_width(window.exponent);
    for (int64_t b = threadIdx.x; near && b < call.bins; b += kThreads) shared[b] = 0;
    __syncthreads();
    for (int64_t i = blockIdx.x * kThreads + threadIdx.x; i < call.length; i += gridDim.x * kThreads) {
      const float value = real(x[i]);
      if (!is_finite(value)) continue;
      const int32_t bin = bin_of(value, inverse) - window.first;
      if (near) {
        atomicAdd(shared + bin, 1u);
      } else {
        add(counts + bin, 1);
      }
    }
    __syncthreads();
    for (int64_t b = threadIdx.x; near && b < call.bins; b += kThreads) {
      if (shared[b] != 0) add(counts + b, shared[b]);
    }
    if (blockIdx.x == 0) {
      const BinWindow before = window_of(call.old_low[row], call.old_high[row], call.bins);
      for (int64_t b = threadIdx.x; b < call.bins; b += kThreads) {
        const int64_t old = call.old_counts[row * call.bins + b];
        const int64_t to = moved(b, before, window);
        // Clamped, since counts and range of a state that was loaded may not belong together.
        if (old != 0) add(counts + (to < 0 ? 0 : to < call.bins ? to : call.bins - 1), old);
      }
    }
    __syncthreads();
  }
}

template <typename T>
struct End {
  Call<T> call;

  __device__ void operator()(int64_t row) const {
    call.low[row] = static_cast<int32_t>(bits_of_float(of_key(call.low[row])));
    call.high[row] = static_cast<int32_t>(bits_of_float(of_key(call.high[row])));
  }
};

struct Launch {
  const Histogram& h;

  template <typename T>
  void go() const {
    const Call<T> call{static_cast<const T*>(h.x.const_data_ptr()),
                       h.rows,
                       h.length(),
                       h.bins,
                       h.old_counts.const_data_ptr<int64_t>(),
                       h.old_low.const_data_ptr<float>(),
                       h.old_high.const_data_ptr<float>(),
                       h.counts.mutable_data_ptr<int64_t>(),
                       reinterpret_cast<int32_t*>(h.low.mutable_data_ptr<float>()),
                       reinterpret_cast<int32_t*>(h.high.mutable_data_ptr<float>()),
                       h.nonfinite.mutable_data_ptr<int64_t>()};
    if (h.rows == 0) return;
    const torch::stable::accelerator::DeviceGuard guard(h.x.get_device_index());
    void* stream = nullptr;
    STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(h.x.get_device_index(), &stream));
    constexpr int64_t kPerThread = 32;  // so that adding the counters of a block up costs less than counting
    constexpr int64_t kMostParts = 1024;
    const int64_t parts = std::clamp<int64_t>(h.length() / (kThreads * kPerThread), 1, kMostParts);
    const dim3 grid(static_cast<unsigned>(parts), static_cast<unsigned>(std::min<int64_t>(h.rows, 65535)));
    const size_t bytes = h.bins <= kSharedBins ? h.bins * sizeof(uint32_t) : 0;
    for_each(h.x, h.rows, Begin<T>{call});
    measure<T><<<grid, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(call);
    STD_CUDA_KERNEL_LAUNCH_CHECK();
    count<T><<<grid, kThreads, bytes, static_cast<cudaStream_t>(stream)>>>(call);
    STD_CUDA_KERNEL_LAUNCH_CHECK();
    for_each(h.x, h.rows, End<T>{call});
  }
};

std::tuple<Tensor, Tensor, Tensor, Tensor> histogram_cuda(const Tensor& x, const Tensor& counts, const Tensor& low,
                                                          const Tensor& high, std::optional<int64_t> axis) {
  const Histogram h(x, counts, low, high, axis);
  with_float(h.type, Launch{h});
  return {h.counts, h.low, h.high, h.nonfinite};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fxquant, CUDA, m) { m.impl("histogram", TORCH_BOX(&histogram_cuda)); }

}  // namespace fxquant
