// What bindings need of tensors beyond torch's stable ABI: density, layouts, allocation in a given order.
#pragma once
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <vector>

#include "common/checks.h"
#include "common/layout.h"

namespace fxquant {

constexpr int64_t kGrain = 32768;  // elements per task: large enough to hide the cost of starting one

// Dimensions from the outermost in memory to the innermost; those of size 1 are left out.
inline std::vector<int64_t> memory_order(const Tensor& x) {
  std::vector<int64_t> order;
  for (int64_t d = 0; d < x.dim(); ++d) {
    if (x.size(d) != 1) order.push_back(d);
  }
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return x.stride(a) > x.stride(b); });
  return order;
}

// Whether the elements fill one stretch of memory, each place once, in whatever order of dimensions.
inline bool is_dense(const Tensor& x) {
  if (x.is_contiguous()) return true;
  int64_t expected = 1;
  const std::vector<int64_t> order = memory_order(x);
  for (auto d = order.rbegin(); d != order.rend(); ++d) {
    if (x.stride(*d) != expected) return false;
    expected *= x.size(*d);
  }
  return true;
}

// Copies the elements of a tensor to another one of equal sizes and dtype. Bindings copy in no other way: a program has to
// copy again what its operators copied, which torch's own copies would hide from it. Each library has its own: copy.cpp,
// copy.cu.
void copy_elements(const Tensor& to, const Tensor& from);

// A tensor that a binding has just allocated. All of them pass through here, so that a program knows their memory, and
// keeps it from being allocated again while it is recorded. Each library has its own, likewise.
Tensor allocated(Tensor x);

// x, or a dense copy of it in the same order of dimensions.
inline Tensor dense(const Tensor& x) {
  if (is_dense(x)) return x;
  Tensor y = allocated(torch::stable::empty_like(x));
  copy_elements(y, x);
  return y;
}

// Fresh memory costs a page fault for every 4 KB at its first write, which is more than our work on it. malloc maps
// anew whatever is larger than 32 MB, so for those the kernel is asked for 2 MB pages (5 times quicker to write first);
// the hint goes with the mapping.
inline void prefer_huge_pages(const Tensor& x) {
#if defined(__linux__)
  constexpr uintptr_t kLarge = 32 << 20;
  constexpr uintptr_t kPage = 64 << 10;  // whatever size pages have, their borders are among these
  const uintptr_t bytes = static_cast<uintptr_t>(x.numel()) * x.element_size();
  if (bytes <= kLarge || !x.is_cpu()) return;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(x.data_ptr()) + kPage - 1) / kPage * kPage;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(x.data_ptr()) + bytes) / kPage * kPage;
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);  // a refusal changes nothing
#endif
}

// A new tensor on the device of x.
inline Tensor empty_strided(const Tensor& x, int64_t dims, const int64_t* sizes, const int64_t* strides,
                            ScalarType dtype) {
  AtenTensorHandle handle = nullptr;
  int32_t device_type = 0;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(x.get(), &device_type));
  const auto shim_dtype = torch::stable::detail::to<int32_t>(torch::stable::detail::from(dtype));
  STABLE_TORCH_ERROR_CODE_CHECK(
      aoti_torch_empty_strided(dims, sizes, strides, shim_dtype, device_type, x.get_device_index(), &handle));
  return allocated(Tensor(handle));
}

// A new tensor of the sizes of x, for results.
inline Tensor empty_strided(const Tensor& x, const int64_t* strides, ScalarType dtype) {
  const Tensor y = empty_strided(x, x.dim(), x.sizes().data(), strides, dtype);
  prefer_huge_pages(y);
  return y;
}

// A new tensor of the sizes and strides of x, which is dense.
inline Tensor empty_like_dense(const Tensor& x, ScalarType dtype) {
  return empty_strided(x, x.strides().data(), dtype);
}

// grad, of the shape of a dense x, with its elements in the same places: itself, or a copy.
inline Tensor in_strides_of(const Tensor& x, const Tensor& grad) {
  bool same = true;
  for (int64_t d = 0; d < x.dim(); ++d) same = same && (x.size(d) == 1 || x.stride(d) == grad.stride(d));
  if (same) return grad;
  const Tensor copy = empty_like_dense(x, grad.scalar_type());
  copy_elements(copy, grad);
  return copy;
}

// One per tensor, or the size of the axis.
inline int64_t channels_of(const Tensor& x, std::optional<int64_t> axis) { return axis.has_value() ? x.size(*axis) : 1; }

// A dense x seen as [outer, channels, inner] in the order of memory.
inline Layout layout_of(const Tensor& x, std::optional<int64_t> axis) {
  if (!axis.has_value()) return {1, 1, x.numel()};
  Layout layout{1, x.size(*axis), 1};
  bool inside = false;
  if (layout.channels == 1) return {1, 1, x.numel()};
  for (const int64_t d : memory_order(x)) {
    if (d == *axis) {
      inside = true;
    } else {
      (inside ? layout.inner : layout.outer) *= x.size(d);
    }
  }
  return layout;
}

}  // namespace fxquant
