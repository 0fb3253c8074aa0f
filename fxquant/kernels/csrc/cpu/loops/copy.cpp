// Copies a tensor to other strides, in the order of the memory of the result.
//
//   for stretch of elements in tasks:       # in parallel: copy_loop
//       for row of the innermost dimension: copy it, or repeat its one value, or take it element by element
//
//   for kTile rows of a matrix in tasks:    # in parallel: transpose_loop, where the last two dimensions change places
//       for kTile columns: transpose the tile
#include "cpu/loops/copy.h"

#include <cstring>

#include "cpu/loops/blocks.h"
#include "cpu/loops/intrinsics.h"

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
void copy_range(const CopyArgs& args, int64_t begin, int64_t end) {
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

// to[r * to_stride + c] = from[c * from_stride + r] for a tile of both.
template <typename T>
void transpose_tile(const T* FXQ_RESTRICT from, int64_t from_stride, T* FXQ_RESTRICT to, int64_t to_stride) {
  T tile[kTile][kTile];
  for (int64_t c = 0; c < kTile; ++c) std::memcpy(tile[c], from + c * from_stride, sizeof(tile[c]));
  for (int64_t r = 0; r < kTile; ++r) {
    for (int64_t c = 0; c < kTile; ++c) to[r * to_stride + c] = tile[c][r];
  }
}

#if defined(__AVX2__)
// Four times, each row of the first half is interleaved with that of the second half: then rows are columns.
template <>
void transpose_tile(const uint8_t* FXQ_RESTRICT from, int64_t from_stride, uint8_t* FXQ_RESTRICT to,
                    int64_t to_stride) {
  __m128i rows[kTile], mixed[kTile];
  for (int64_t c = 0; c < kTile; ++c) {
    rows[c] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + c * from_stride));
  }
  const auto interleave = [](const __m128i* x, __m128i* y) {
    for (int64_t i = 0; i < kTile / 2; ++i) {
      y[2 * i] = _mm_unpacklo_epi8(x[i], x[i + kTile / 2]);
      y[2 * i + 1] = _mm_unpackhi_epi8(x[i], x[i + kTile / 2]);
    }
  };
  interleave(rows, mixed);
  interleave(mixed, rows);
  interleave(rows, mixed);
  interleave(mixed, rows);
  for (int64_t r = 0; r < kTile; ++r) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + r * to_stride), rows[r]);
  }
}
#endif

template <typename T>
void transpose_tiles(const CopyArgs& args, int64_t begin, int64_t end) {
  const StridedPair& s = args.shape;
  const int last = s.dims - 1;
  const int64_t tiles = args.row_tiles(), columns = s.size[last];
  for (int64_t task = begin; task < end; ++task) {
    const int64_t row = task % tiles * kTile;
    const int64_t rows = s.size[last - 1] - row < kTile ? s.size[last - 1] - row : kTile;
    const T* from = reinterpret_cast<const T*>(args.from) + row;
    T* to = reinterpret_cast<T*>(args.to) + row * s.b_stride[last - 1];
    int64_t rest = task / tiles;
    for (int d = last - 2; d >= 0; --d) {
      from += rest % s.size[d] * s.a_stride[d];
      to += rest % s.size[d] * s.b_stride[d];
      rest /= s.size[d];
    }
    int64_t c = 0;
    for (; rows == kTile && c + kTile <= columns; c += kTile) {
      transpose_tile(from + c * s.a_stride[last], s.a_stride[last], to + c, s.b_stride[last - 1]);
    }
    for (int64_t r = 0; r < rows; ++r) {
      run(from + c * s.a_stride[last] + r, s.a_stride[last], to + c + r * s.b_stride[last - 1], 1, columns - c);
    }
  }
}

}  // namespace

void transpose_loop(const CopyArgs& args, int64_t begin, int64_t end) {
  switch (args.element) {
    case 1: return transpose_tiles<uint8_t>(args, begin, end);
    case 2: return transpose_tiles<uint16_t>(args, begin, end);
    case 4: return transpose_tiles<uint32_t>(args, begin, end);
    default: return transpose_tiles<uint64_t>(args, begin, end);
  }
}

void copy_loop(const CopyArgs& args, int64_t begin, int64_t end) {
  switch (args.element) {
    case 1: return copy_range<uint8_t>(args, begin, end);
    case 2: return copy_range<uint16_t>(args, begin, end);
    case 4: return copy_range<uint32_t>(args, begin, end);
    default: return copy_range<uint64_t>(args, begin, end);
  }
}

}  // namespace FXQ_ISA
}  // namespace fxquant
