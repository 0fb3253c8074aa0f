// Multiplies rows of floats by a weight of 4 or 8 bits. A task is a panel, 16 channels of the result:
//
//   for panel:                                  # parallel
//       few rows, for group, stretch of it:     # at most 128 values
//           p0 ... p3 = 0
//           for value k of the stretch:         # dequantized in registers, once for a tile of rows
//               p[k % 4] += x[k] * (q[k] - zero point)
//           total += ((p0 + p1) + (p2 + p3)) * scale of the group
//       many rows, for block of 64:
//           for some stretches:                 # 1,024 values
//               dequantize into scratch
//               for tile of rows: the same, with values from scratch
//       y = total + bias
//
// Each product and each sum is rounded to float32, in this order, so that results depend neither on the instruction set nor
// on the number of rows or threads.
#include "linear/cpu/loops/weight_only_linear.h"

#include "cpu/loops/blocks.h"
#include "linear/cpu/loops/lanes.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

constexpr int kPartialSums = 4;
constexpr int64_t kAhead = 2048;  // bytes of the weight that are asked for before they are read

struct Stretch {
  int64_t group;
  int64_t first;  // value of the group; even
  int64_t count;
};

// Values of a stretch, packed; `zero_point` is null or that of the slice's channels. at<j>(k) gives value k + j, for the
// j < 4 of one step; k is a multiple of four.
template <bool kNibbles, bool kShifted>
struct PackedValues {
  const uint8_t* bytes;  // of the slice, where the stretch begins
  Lanes zero_point;

  PackedValues(const GroupedWeight& w, int64_t panel, const Stretch& s, int64_t slice)
      : bytes(w.group(panel, s.group) + (kNibbles ? s.first / 2 : s.first) * kPanelChannels + slice * kLanes),
        zero_point(no_lanes()) {
    if constexpr (kShifted) {
      const int64_t channel = panel * kPanelChannels + slice * kLanes;
      const int8_t* at = w.zero_point + s.group * w.panels * kPanelChannels + channel;
      zero_point = byte_values(load_bytes(reinterpret_cast<const uint8_t*>(at)));
    }
  }

  template <int j>
  Lanes at(int64_t k) const {
    Lanes values;
    if constexpr (kNibbles) {
      const Integers both = load_bytes(bytes + (k / 2 + j / 2) * kPanelChannels);
      values = j % 2 ? high_values(both) : low_values(both);
    } else {
      values = byte_values(load_bytes(bytes + (k + j) * kPanelChannels));
    }
    return kShifted ? difference(values, zero_point) : values;
  }

  void ask(int64_t k) const { __builtin_prefetch(bytes + (kNibbles ? k / 2 : k) * kPanelChannels + kAhead); }
};

// The same, dequantized: [value][16].
struct FloatValues {
  const float* values;  // of the slice, where the stretch begins

  template <int j>
  Lanes at(int64_t k) const {
    return load_lanes(values + (k + j) * kPanelChannels);
  }

  void ask(int64_t) const {}
};

// Adds one product to a partial sum of each row.
template <int kRows, int j, typename Values>
inline void add_products(const Values& values, const float* x, int64_t stride, int64_t k, Lanes (*partial)[kPartialSums]) {
  const Lanes value = values.template at<j>(k);
  FXQ_UNROLL
  for (int r = 0; r < kRows; ++r) partial[r][j] = sum(partial[r][j], product(value, all_lanes(x + r * stride + k + j)));
}

// Adds the products of a stretch to the totals of a tile of rows: [row][16], those of the slice.
template <int kRows, typename Values>
inline void add_stretch(const Values& values, const float* x, int64_t stride, int64_t count, Lanes scale, float* totals) {
  Lanes partial[kRows][kPartialSums];
  FXQ_UNROLL
  for (int r = 0; r < kRows; ++r) {
    FXQ_UNROLL
    for (int j = 0; j < kPartialSums; ++j) partial[r][j] = no_lanes();
  }
  int64_t k = 0;
  for (; k + kPartialSums <= count; k += kPartialSums) {
    values.ask(k);
    add_products<kRows, 0>(values, x, stride, k, partial);
    add_products<kRows, 1>(values, x, stride, k, partial);
    add_products<kRows, 2>(values, x, stride, k, partial);
    add_products<kRows, 3>(values, x, stride, k, partial);
  }
  if (k + 0 < count) add_products<kRows, 0>(values, x, stride, k, partial);
  if (k + 1 < count) add_products<kRows, 1>(values, x, stride, k, partial);
  if (k + 2 < count) add_products<kRows, 2>(values, x, stride, k, partial);
  FXQ_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const Lanes all = sum(sum(partial[r][0], partial[r][1]), sum(partial[r][2], partial[r][3]));
    float* total = totals + r * kPanelChannels;
    store_lanes(total, sum(load_lanes(total), product(all, scale)));
  }
}

// Calls f(stretch) for all of a weight, in order.
template <typename F>
inline void for_each_stretch(const GroupedWeight& w, F f) {
  for (int64_t g = 0; g < w.groups; ++g) {
    for (int64_t first = 0; first < w.group_size; first += kStretch) {
      f(Stretch{g, first, w.group_size - first < kStretch ? w.group_size - first : kStretch});
    }
  }
}

inline Lanes scale_of(const GroupedWeight& w, int64_t panel, const Stretch& s, int64_t slice) {
  return load_lanes(w.scale + (s.group * w.panels + panel) * kPanelChannels + slice * kLanes);
}

void clear(float* totals, int64_t rows) { std::memset(totals, 0, rows * kPanelChannels * sizeof(float)); }

void store_rows(const WeightOnlyLinearArgs& args, int64_t panel, int64_t first, int64_t rows, const float* totals) {
  const GroupedWeight& w = args.weight;
  const int64_t channel = panel * kPanelChannels;
  const int64_t count = w.channels - channel < kPanelChannels ? w.channels - channel : kPanelChannels;
  for (int64_t r = 0; r < rows; ++r) {
    float* y = args.y + (first + r) * w.channels + channel;
    for (int64_t c = 0; c < count; ++c) y[c] = totals[r * kPanelChannels + c] + w.bias[channel + c];
  }
}

// One tile of rows: values are dequantized in registers.
template <int kRows, bool kNibbles, bool kShifted>
FXQ_ONE_LOOP void multiply_packed(const WeightOnlyLinearArgs& args, int64_t panel, int64_t first_row) {
  const GroupedWeight& w = args.weight;
  float totals[kRows * kPanelChannels];
  clear(totals, kRows);
  const int64_t stride = w.in_features();
  const float* x = args.x + first_row * stride;
  for_each_stretch(w, [&](const Stretch& s) {
    const float* from = x + s.group * w.group_size + s.first;
    for (int64_t slice = 0; slice < kSlices; ++slice) {
      add_stretch<kRows>(PackedValues<kNibbles, kShifted>(w, panel, s, slice), from, stride, s.count,
                         scale_of(w, panel, s, slice), totals + slice * kLanes);
    }
  });
  store_rows(args, panel, first_row, kRows, totals);
}

template <bool kNibbles, bool kShifted>
void multiply_few(const WeightOnlyLinearArgs& args, int64_t panel) {
  int64_t row = 0;
  for (; row + kTileRows <= args.rows; row += kTileRows) {
    multiply_packed<kTileRows, kNibbles, kShifted>(args, panel, row);
  }
  for (; row < args.rows; ++row) multiply_packed<1, kNibbles, kShifted>(args, panel, row);
}

template <bool kNibbles, bool kShifted>
void dequantize(const GroupedWeight& w, int64_t panel, const Stretch& s, float* to) {
  for (int64_t slice = 0; slice < kSlices; ++slice) {
    const PackedValues<kNibbles, kShifted> values(w, panel, s, slice);
    float* at = to + slice * kLanes;
    for (int64_t k = 0; k < s.count; k += 2) {
      store_lanes(at + k * kPanelChannels, values.template at<0>(k));
      if (k + 1 < s.count) store_lanes(at + (k + 1) * kPanelChannels, values.template at<1>(k));
    }
  }
}

// Stretches that are dequantized together.
struct Dequantized {
  Stretch stretches[kDequantized];
  int64_t count = 0;   // of stretches
  int64_t values = 0;  // of them all
};

template <int kRows>
FXQ_ONE_LOOP void add_dequantized(const WeightOnlyLinearArgs& args, int64_t panel, const Dequantized& d,
                                  const float* values, int64_t row, float* totals) {
  const GroupedWeight& w = args.weight;
  const int64_t stride = w.in_features();
  for (int64_t i = 0; i < d.count; ++i) {
    const Stretch& s = d.stretches[i];
    const float* from = args.x + row * stride + s.group * w.group_size + s.first;
    for (int64_t slice = 0; slice < kSlices; ++slice) {
      add_stretch<kRows>(FloatValues{values + slice * kLanes}, from, stride, s.count, scale_of(w, panel, s, slice),
                         totals + slice * kLanes);
    }
    values += s.count * kPanelChannels;
  }
}

// Rows of a block, with the weights of a panel: those that fit scratch are dequantized, and all rows are multiplied.
template <bool kNibbles, bool kShifted>
void multiply_block(const WeightOnlyLinearArgs& args, int64_t panel, int64_t first, int64_t rows, float* scratch) {
  float* totals = scratch + kDequantized * kPanelChannels;
  clear(totals, rows);
  Dequantized d;
  const auto multiply = [&] {
    int64_t r = 0;
    for (; r + kTileRows <= rows; r += kTileRows) {
      add_dequantized<kTileRows>(args, panel, d, scratch, first + r, totals + r * kPanelChannels);
    }
    for (; r < rows; ++r) add_dequantized<1>(args, panel, d, scratch, first + r, totals + r * kPanelChannels);
    d.count = d.values = 0;
  };
  for_each_stretch(args.weight, [&](const Stretch& s) {
    if (d.values + s.count > kDequantized) multiply();
    dequantize<kNibbles, kShifted>(args.weight, panel, s, scratch + d.values * kPanelChannels);
    d.stretches[d.count++] = s;
    d.values += s.count;
  });
  multiply();
  store_rows(args, panel, first, rows, totals);
}

// Rows for which dequantizing into memory pays.
constexpr int64_t kManyRows = 2 * kTileRows + 1;

template <bool kNibbles, bool kShifted>
void multiply(const WeightOnlyLinearArgs& args, int64_t begin, int64_t end, float* scratch) {
  for (int64_t panel = begin; panel < end; ++panel) {
    if (args.rows < kManyRows) {
      multiply_few<kNibbles, kShifted>(args, panel);
      continue;
    }
    for (int64_t row = 0; row < args.rows; row += kRowBlock) {
      const int64_t rows = args.rows - row < kRowBlock ? args.rows - row : kRowBlock;
      multiply_block<kNibbles, kShifted>(args, panel, row, rows, scratch);
    }
  }
}

}  // namespace

void weight_only_linear_loop(const WeightOnlyLinearArgs& args, int64_t begin, int64_t end, float* scratch) {
  const bool is_shifted = args.weight.zero_point != nullptr;
  if (args.weight.nibbles) {
    is_shifted ? multiply<true, true>(args, begin, end, scratch) : multiply<true, false>(args, begin, end, scratch);
  } else {
    is_shifted ? multiply<false, true>(args, begin, end, scratch) : multiply<false, false>(args, begin, end, scratch);
  }
}

}  // namespace FXQ_ISA
}  // namespace fxquant
