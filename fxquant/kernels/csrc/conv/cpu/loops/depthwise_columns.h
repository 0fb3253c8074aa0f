// Packs columns of a strip: four rows of x become the K groups of each channel. No torch.
#pragma once
#include "conv/cpu/loops/depthwise_block.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

// Packs columns of which some lie in the padding, or so near the end of x that a whole lane cannot be loaded.
template <int V, bool kSigned>
void pack_edge(const Block& b, const uint8_t* const* rows, int64_t w, uint8_t* to, int64_t plane) {
  const ConvShape& s = b.s;
  uint8_t copied[kKGroup][kLanes][kLaneBytes];
  ByteLanes bytes[kKGroup];
  for (int64_t k = 0; k < kKGroup; ++k) {
    const uint8_t* lanes[kLanes];
    for (int64_t i = 0; i < kLanes; ++i) {
      const int64_t column = w + i / V * s.stride_width;
      const bool inside = rows[k] != nullptr && column >= 0 && column < s.width;
      const uint8_t* const from = (inside ? rows[k] + column * b.a.x_step : b.padding) + i % V * kLaneBytes;
      const int64_t room = inside ? b.end_of_x - from : kLaneBytes;
      lanes[i] = from;
      if (room < kLaneBytes) {
        std::memset(copied[k][i], 0, kLaneBytes);
        if (room > 0) copy_bytes(copied[k][i], from, room);
        lanes[i] = copied[k][i];
      }
    }
    bytes[k] = flip_bytes(gather_lanes(lanes, 0), kPixelFlip<kSigned>);
  }
  store_column(bytes, to, plane);
}

FXQ_INLINE void pack_padding(const uint8_t* column, uint8_t* to, int64_t plane) {
  FXQ_UNROLL
  for (int64_t i = 0; i < kKGroupRegisters; ++i) store_bytes(to + i * plane, load_bytes(column + i * kRegister));
}

// Packs `steps` registers of columns of x from column w on. kTogether lanes lie together in memory.
template <int V, int kTogether, bool kSigned>
void pack_inside(const Block& b, const uint8_t* const* rows, int64_t w, int64_t steps, uint8_t* to) {
  const uint8_t* from[kKGroup];
  int64_t step[kKGroup], distance[kKGroup];
  FXQ_UNROLL
  for (int64_t k = 0; k < kKGroup; ++k) {
    const bool exists = rows[k] != nullptr;
    from[k] = exists ? rows[k] + w * b.a.x_step : b.padding;
    distance[k] = exists ? b.s.stride_width * b.a.x_step : V * kLaneBytes;
    step[k] = exists ? kLanes / V * distance[k] : 0;
  }
  const int64_t plane = b.columns->plane;
  for (; steps > 0; --steps, to += kRegister) {
    ByteLanes bytes[kKGroup];
    FXQ_UNROLL
    for (int64_t k = 0; k < kKGroup; ++k) {
      bytes[k] = flip_bytes(load_lanes<kTogether>(from[k], distance[k]), kPixelFlip<kSigned>);
      from[k] += step[k];
    }
    store_column(bytes, to, plane);
  }
}

// The columns of x among some that lie `stride` apart.
struct InsideColumns {
  int64_t begin;  // the first one that is not padding
  int64_t end;    // behind the last one that is not padding
  int64_t whole;  // behind the last one that can be loaded with all V panels
};

// Of `count` columns from w on, in the rows of a K group. `last` is the row of x that lies last in memory.
template <int V>
FXQ_INLINE InsideColumns columns_inside(const Block& b, const uint8_t* last, int64_t w, int64_t count) {
  const int64_t stride = b.s.stride_width;
  const auto limit = [count](int64_t i) { return i < 0 ? 0 : i < count ? i : count; };
  const auto steps = [stride](int64_t i) { return stride == 1 ? i : stride == 2 ? i >> 1 : i / stride; };  // i >= 0
  const int64_t begin = limit(w >= 0 ? 0 : steps(-w + stride - 1));
  const int64_t end = limit(w >= b.s.width ? 0 : steps(b.s.width - 1 - w) + 1);
  int64_t whole = end;
  if (b.left < V * kPanel) {
    const int64_t room = b.end_of_x - V * kPanel - last;
    const int64_t most = room < 0 || room / b.a.x_step < w ? 0 : limit((room / b.a.x_step - w) / stride + 1);
    whole = most < end ? most : end;
  }
  return {begin, end, whole};
}

// Returns the row that lies last in memory, or null where all are padding.
FXQ_INLINE const uint8_t* last_row(const uint8_t* const* rows) {
  const uint8_t* last = nullptr;
  for (int64_t k = 0; k < kKGroup; ++k) last = rows[k] != nullptr && (last == nullptr || rows[k] > last) ? rows[k] : last;
  return last;
}

// Packs columns w, w + stride, ... of x for one K group.
template <int V, bool kSigned>
void pack_segment(const Block& b, const uint8_t* const* rows, int64_t w, int64_t count, uint8_t* to) {
  constexpr int64_t kPixels = kLanes / V;
  const int64_t stride = b.s.stride_width, plane = b.columns->plane;
  const uint8_t* const last = last_row(rows);
  const InsideColumns inside = last == nullptr ? InsideColumns{0, 0, 0} : columns_inside<V>(b, last, w, count);
  int64_t i = 0;
  const auto pack_edges = [&](int64_t stop) {
    for (; i < stop; i += kPixels) {
      uint8_t* const at = to + i * V * kLaneBytes;
      const bool is_padding = i + kPixels <= inside.begin || i >= inside.end;
      is_padding ? pack_padding(b.padding_column, at, plane) : pack_edge<V, kSigned>(b, rows, w + i * stride, at, plane);
    }
  };
  const int64_t first = round_up(inside.begin, kPixels);
  pack_edges(first < count ? first : count);
  if (i + kPixels <= inside.whole) {
    const int64_t steps = (inside.whole - i) / kPixels;
    uint8_t* const at = to + i * V * kLaneBytes;
    if (V == kLanes || stride * b.a.x_step == V * kLaneBytes) {
      pack_inside<V, kLanes, kSigned>(b, rows, w + i * stride, steps, at);
    } else {
      pack_inside<V, V, kSigned>(b, rows, w + i * stride, steps, at);
    }
    i += steps * kPixels;
  }
  pack_edges(count);
}

// Packs the columns of `count` pixels of the result, from number `output` of the row on.
template <int V, bool kSigned>
void pack_columns(const Block& b, int64_t output, int64_t count) {
  const ColumnLayout& columns = *b.columns;
  const int64_t left = output * b.s.stride_width - b.s.left, wanted = round_up(count, columns.pixels);
  for (int64_t k_group = 0; k_group < b.k_groups; ++k_group) {
    uint8_t* const to = b.packed_columns + k_group * kKGroupRegisters * columns.plane;
    for (int64_t i = 0; i < columns.segments; ++i) {
      pack_segment<V, kSigned>(b, b.rows + k_group * kKGroup, left + i * b.s.dilation_width,
                               columns.segment_length(b.s, i, wanted), to + columns.taps[i]);
    }
  }
}

}  // namespace
}  // namespace FXQ_ISA
}  // namespace fxquant
