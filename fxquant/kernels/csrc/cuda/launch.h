// Starts kernels: one thread per element, on the current stream of the device that a tensor lies on.
#pragma once
#include <cuda_runtime.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>

namespace fxquant {

template <typename F>
__global__ void for_each_kernel(int64_t count, F f) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < count; i += stride) f(i);
}

// Calls f(i) for 0 <= i < count. F is a struct with a __device__ operator(), passed by value.
template <typename F>
void for_each(const torch::stable::Tensor& on, int64_t count, const F& f) {
  if (count == 0) return;
  constexpr int64_t kThreads = 256;
  constexpr int64_t kMostBlocks = 1 << 20;
  const torch::stable::accelerator::DeviceGuard guard(on.get_device_index());
  void* stream = nullptr;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(on.get_device_index(), &stream));
  const int64_t blocks = std::min((count + kThreads - 1) / kThreads, kMostBlocks);
  for_each_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(count, f);
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace fxquant
