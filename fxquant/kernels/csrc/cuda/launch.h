// Starts kernels on the current stream of the device that a tensor lies on: one thread per element, or per pack of them.
#pragma once
#if defined(__CUDACC__)
#include <cuda_runtime.h>
#endif
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>

#include "cuda/packs.h"

namespace fxquant {

constexpr int kThreads = 256;

#if defined(__CUDACC__)

// Makes the device of a tensor the current one while it lives.
class OnDevice {
 public:
  explicit OnDevice(const torch::stable::Tensor& x) : guard_(x.get_device_index()) {
    void* stream = nullptr;
    STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(x.get_device_index(), &stream));
    stream_ = static_cast<cudaStream_t>(stream);
  }

  cudaStream_t stream() const { return stream_; }

 private:
  const torch::stable::accelerator::DeviceGuard guard_;
  cudaStream_t stream_;
};

template <typename F>
__global__ void for_each_kernel(int64_t count, F f) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < count; i += stride) f(i);
}

#endif

// Calls f(i) for 0 <= i < count. F is a struct that kernels get by value.
template <typename F>
void for_each([[maybe_unused]] const torch::stable::Tensor& on, int64_t count, const F& f) {
  if (count == 0) return;
#if defined(__CUDACC__)
  constexpr int64_t kMostBlocks = 1 << 20;
  const OnDevice device(on);
  const int64_t blocks = std::min((count + kThreads - 1) / kThreads, kMostBlocks);
  for_each_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, device.stream()>>>(count, f);
  STD_CUDA_KERNEL_LAUNCH_CHECK();
#else
  for (int64_t i = 0; i < count; ++i) f(i);
#endif
}

// Calls f.template run<N>(i), for the N elements from i on: F::kPack of them where f.aligned() allows, else one.
template <typename F>
void for_each_pack(const torch::stable::Tensor& on, int64_t count, const F& f) {
  const int64_t packs = f.aligned() ? count / F::kPack : 0;
  for_each(on, count - packs * (F::kPack - 1), Items<F>{f, packs});
}

// Adds integers, so that the order does not matter.
FXQ_MEMBER void add_to(int64_t* counter, int64_t count) {
#if defined(__CUDA_ARCH__)
  atomicAdd(reinterpret_cast<unsigned long long*>(counter), static_cast<unsigned long long>(count));
#else
  *counter += count;
#endif
}

}  // namespace fxquant
