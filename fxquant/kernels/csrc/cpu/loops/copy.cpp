#include "copy.h"

#include <cstring>

#include "blocks.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

template <typename T>
void run(const T* FXQ_RESTRICT from, int64_t from_stride, T* FXQ_RESTRICT to, int64_t to_stride, int64_t count) {
  if (from_stride == 1 && to_stride == 1) {
    std::memcpy(to, from, count * sizeof(T));
  } else if (from_stride == 0 && to_stride == 1) {
    const T value = *from;
    for (int64_t i = 0; i < count; ++i) to[i] = value;
  } else {
    for (int64_t i = 0; i < count; ++i) to[i * to_stride] = from[i * from_stride];
  }
}

template <typename T>
void walk(const CopyArgs& args, int64_t begin, int64_t end) {
  const StridedPair& s = args.shape;
  const int inner = s.dims - 1;
  int64_t index[kMaxDims];
  const T* from = reinterpret_cast<const T*>(args.from);
  T* to = reinterpret_cast<T*>(args.to);
  for (int64_t d = inner, rest = begin; d >= 0; --d) {
    index[d] = rest % s.size[d];
    rest /= s.size[d];
    from += index[d] * s.a_stride[d];
    to += index[d] * s.b_stride[d];
  }
  while (begin < end) {
    const int64_t left = s.size[inner] - index[inner];
    const int64_t count = left < end - begin ? left : end - begin;
    run(from, s.a_stride[inner], to, s.b_stride[inner], count);
    begin += count;
    from -= index[inner] * s.a_stride[inner];  // back to the start of the row
    to -= index[inner] * s.b_stride[inner];
    index[inner] = 0;
    for (int d = inner - 1; d >= 0; --d) {
      from += s.a_stride[d];
      to += s.b_stride[d];
      if (++index[d] < s.size[d]) break;
      from -= s.size[d] * s.a_stride[d];
      to -= s.size[d] * s.b_stride[d];
      index[d] = 0;
    }
  }
}

}  // namespace

void copy_loop(const CopyArgs& args, int64_t begin, int64_t end) {
  switch (args.element) {
    case 1: return walk<uint8_t>(args, begin, end);
    case 2: return walk<uint16_t>(args, begin, end);
    case 4: return walk<uint32_t>(args, begin, end);
    default: return walk<uint64_t>(args, begin, end);
  }
}

}  // namespace FXQ_ISA
}  // namespace fxquant
