// Which results are channels_last: the rule of torch, as fxquant/kernels/pool/windows.py has it.
#pragma once
#include <vector>

#include "common/tensor.h"

namespace fxquant {

// Whether a four-dimensional x is stored in the order N, H, W, C. Ambiguous strides count as contiguous.
inline bool is_channels_last(const Tensor& x) {
  if (x.dim() != 4 || x.stride(1) == 0) return false;
  int64_t smallest = 0;
  for (const int64_t d : {1, 3, 2, 0}) {
    const int64_t size = x.size(d);
    const int64_t stride = x.stride(d);
    if (size == 0 || stride < smallest || (d == 0 && smallest == x.stride(1))) return false;
    smallest = size > 1 ? stride * size : stride;
  }
  return true;
}

// Strides of a dense tensor of these sizes, as torch gives them to one without elements too. Channels are dimension 1.
// Modulo 2^64: where a size is 0, the product of the others may be any.
inline std::vector<int64_t> dense_strides(const std::vector<int64_t>& sizes, bool channels_last) {
  std::vector<int64_t> strides(sizes.size());
  if (channels_last) {
    uint64_t step = sizes[1];
    for (size_t d = sizes.size() - 1; d > 1; step *= sizes[d--]) strides[d] = static_cast<int64_t>(step);
    strides[0] = static_cast<int64_t>(step);
    strides[1] = 1;
    return strides;
  }
  uint64_t step = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    strides[d] = static_cast<int64_t>(step);
    step *= std::max<int64_t>(sizes[d], 1);
  }
  return strides;
}

inline Tensor empty_as(const Tensor& x, const std::vector<int64_t>& sizes, bool channels_last, ScalarType dtype) {
  const std::vector<int64_t> strides = dense_strides(sizes, channels_last);
  return empty_strided(x, static_cast<int64_t>(sizes.size()), sizes.data(), strides.data(), dtype);
}

inline Tensor empty_as(const Tensor& x, const std::vector<int64_t>& sizes, bool channels_last) {
  return empty_as(x, sizes, channels_last, x.scalar_type());
}

inline std::vector<int64_t> sizes_of(const Tensor& x) { return {x.sizes().begin(), x.sizes().end()}; }

// x itself if it is dense in this memory format, else a copy that is.
inline Tensor to_memory_format(const Tensor& x, bool channels_last) {
  const std::vector<int64_t> sizes = sizes_of(x);
  const std::vector<int64_t> strides = dense_strides(sizes, channels_last);
  bool right = true;
  for (int64_t d = 0; d < x.dim(); ++d) right = right && (sizes[d] == 1 || x.stride(d) == strides[d]);
  if (right) return x;
  const Tensor y = empty_as(x, sizes, channels_last);
  copy_elements(y, x);
  return y;
}

inline Tensor row_major(const Tensor& x) { return to_memory_format(x, false); }

}  // namespace fxquant
