// The sources of this folder compile twice: with nvcc into the CUDA library, and with a plain C++ compiler, where what
// starts kernels (launch.h, reduce.h, count.h) runs their bodies in loops. So tests run all but the launches on the host.
#pragma once

#if defined(__CUDACC__)
#define FXQ_MEMBER __host__ __device__ __forceinline__
#define FXQ_CUDA_LIBRARY(m) STABLE_TORCH_LIBRARY_IMPL(fxquant, CUDA, m)
#else
// not static as FXQ_HOST_DEVICE is: members cannot be, and there is one instruction set alone
#define FXQ_MEMBER inline
#define FXQ_CUDA_LIBRARY(m) STABLE_TORCH_LIBRARY_IMPL(fxquant_host, CPU, m)
#endif
