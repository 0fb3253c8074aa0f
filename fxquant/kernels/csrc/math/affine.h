// Per-element affine quantization, written once for the CPU (C++) and for CUDA.
// No torch, no tensors, no loops: only the arithmetic, so that the two devices cannot drift apart.
//
// A grid value stays in float until it is stored: inf and NaN are representable there, and clamped before any cast.
// Clamps are ternaries, which send NaN to the lower limit and vectorise (fmaxf and fminf do neither).
#pragma once
#include <cmath>
#include <cstdint>

#if defined(__CUDACC__) || defined(__HIPCC__)
#define FXQ_HOST_DEVICE __host__ __device__ __forceinline__
#else
// static: each instruction set needs its own copy, and the linker merges functions that are merely inline
#define FXQ_HOST_DEVICE static inline
#endif

namespace fxquant {

// Real number of an integer of at most 16 bits: the difference is exact, the product is rounded once.
FXQ_HOST_DEVICE float dequantize(int32_t q, float scale, int32_t zero_point) {
  return static_cast<float>(q - zero_point) * scale;
}

// The same for an int32, whose distance from the zero point may need 33 bits.
FXQ_HOST_DEVICE float dequantize_wide(int32_t q, float scale, int32_t zero_point) {
  return static_cast<float>(static_cast<int64_t>(q) - static_cast<int64_t>(zero_point)) * scale;
}

}  // namespace fxquant
