// Copies elements between tensors of equal sizes, whatever their strides.
#pragma once
#include "common/tensor.h"
#include "cpu/launch.h"
#include "cpu/loops/copy.h"

namespace fxquant {

// `element` is the size of one in bytes: 1, 2, 4 or 8. Strides are in elements; no two elements of `to` share a place.
inline void copy_strided(uint8_t* to, const uint8_t* from, int64_t element, int64_t dims, const int64_t* sizes,
                         const int64_t* to_strides, const int64_t* from_strides) {
  CopyArgs args{from, to, element, {}};
  StridedPair& s = args.shape;
  s.dims = 0;
  std::vector<int64_t> order;
  int64_t numel = 1;
  for (int64_t d = 0; d < dims; ++d) {
    if (sizes[d] != 1) order.push_back(d);
    numel *= sizes[d];
  }
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return to_strides[a] > to_strides[b]; });
  for (const int64_t d : order) {
    const int last = s.dims - 1;
    if (last >= 0 && s.a_stride[last] == from_strides[d] * sizes[d] && s.b_stride[last] == to_strides[d] * sizes[d]) {
      s.size[last] *= sizes[d];
    } else {
      s.size[s.dims] = sizes[d];
      ++s.dims;
    }
    s.a_stride[s.dims - 1] = from_strides[d];
    s.b_stride[s.dims - 1] = to_strides[d];
  }
  if (s.dims == 0) {
    s.dims = 1;
    s.size[0] = s.a_stride[0] = s.b_stride[0] = 1;
  }
  if (args.transposes()) {
    const int64_t matrix = s.size[s.dims - 2] * s.size[s.dims - 1];
    launch(args, numel / matrix * args.row_tiles(), kGrain / (kTile * s.size[s.dims - 1]) + 1,
           [](const CopyArgs& a, int64_t begin, int64_t end, void*) { FXQ_LOOP(transpose_loop)(a, begin, end); });
    return;
  }
  launch(args, numel, kGrain,
         [](const CopyArgs& a, int64_t begin, int64_t end, void*) { FXQ_LOOP(copy_loop)(a, begin, end); });
}

}  // namespace fxquant
