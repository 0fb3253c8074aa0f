// What the loops of a depthwise convolution share: the weights, scales and padding of one block of panels in the order of
// registers, the rows of x that are read, and where packed columns lie. No torch.
#pragma once
#include <cstring>

#include "conv/cpu/loops/clamp_at.h"
#include "conv/cpu/loops/depthwise.h"
#include "conv/cpu/loops/depthwise_registers.h"
#include "math/modulo.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

constexpr int64_t kRegister = sizeof(ByteLanes);
constexpr int64_t kKGroupRegisters = kQuarters * kParts;
constexpr int64_t kQuarterFloats = kLanes * 4;  // 32-bit values of a register

FXQ_INLINE int64_t round_up(int64_t x, int64_t multiple) { return (x + multiple - 1) / multiple * multiple; }

// Where packed columns lie: [K groups][quarters][parts][columns][panels of kLaneBytes]. Windows of a strip share columns:
// with a stride, each remainder of the column's number modulo the stride has a segment of its own. So the columns that one
// tap reads for successive pixels of the result always lie side by side.
struct ColumnLayout {
  int64_t pixels = 0;   // of the result that lie side by side in a register
  int64_t outputs = 0;  // pixels of a strip at most; 0: not laid out yet
  int64_t segments = 0;
  int64_t plane = 0;    // bytes of one part of one quarter of one K group
  bool is_shared = false;
  int64_t* taps = nullptr;  // where the first column of each tap lies in a plane

  void lay_out(const DepthwiseArgs& a, int64_t panels) {
    const ConvShape& s = a.shape;
    pixels = kLanes / panels;
    int64_t divisor = s.stride_width;
    for (int64_t rest = s.dilation_width; rest != 0;) {
      const int64_t next = divisor % rest;
      divisor = rest;
      rest = next;
    }
    period_ = s.stride_width / divisor;
    gap_ = s.dilation_width / divisor;
    // The strips of a row have about the same length.
    const int64_t column = s.k_groups() * kKGroupRegisters * panels * kLaneBytes;
    outputs = round_up(s.out_width, pixels);
    while (outputs > pixels && columns(s) * column > a.column_bytes()) outputs = round_up(outputs / 2, pixels);
    const int64_t strips = (s.out_width + outputs - 1) / outputs;
    outputs = round_up((s.out_width + strips - 1) / strips, pixels);
    plane = columns(s) * panels * kLaneBytes;
    int64_t begin = 0;
    for (int64_t i = 0; i < segments; ++i) {
      const int64_t count = taps_of(s, i);
      for (int64_t k = 0; k < count; ++k) taps[i + k * period_] = (begin + k * gap_) * panels * kLaneBytes;
      begin += round_up(segment_length(s, i, outputs), pixels);
    }
  }

  // Returns how many columns of segment i so many outputs need.
  int64_t segment_length(const ConvShape& s, int64_t i, int64_t count) const {
    return count + (taps_of(s, i) - 1) * gap_;
  }

 private:
  int64_t period_ = 1;  // So many taps further, a window reads the same segment,
  int64_t gap_ = 1;     // so many columns further.

  int64_t taps_of(const ConvShape& s, int64_t i) const {
    return is_shared ? (s.kernel_width - i + period_ - 1) / period_ : 1;
  }
  // Chooses the segments for strips of `outputs` pixels, and returns how many columns they have.
  int64_t columns(const ConvShape& s) {
    is_shared = gap_ <= outputs;
    segments = is_shared && period_ < s.kernel_width ? period_ : s.kernel_width;
    int64_t sum = 0;
    for (int64_t i = 0; i < segments; ++i) sum += round_up(segment_length(s, i, outputs), pixels);
    return sum;
  }
};

// One block: V panels of kLanes / V pixels to a register.
struct Block {
  const DepthwiseArgs& a;
  const ConvShape& s;
  const Requantize requantize;
  const int64_t k_groups;
  const int64_t taps;         // columns of the window
  const int64_t shared_rows;  // rows of the result that are computed from one packing
  const uint8_t* const end_of_x;
  // Scratch memory: packed columns, the results of a tile before they are stored, and what prepare() and find_rows() fill.
  uint8_t* packed_columns;
  uint8_t* results;
  uint8_t* weights;  // [shared rows][taps][K groups][quarters][parts] registers
  int32_t* initial;  // zero point correction: [quarters] registers, as the next two
  float* scale;
  float* bias;
  uint8_t* padding;         // one register of bytes
  uint8_t* padding_column;  // packed
  const uint8_t** rows;     // [K groups][kKGroup], null: a row of padding
  ColumnLayout layouts[3];  // for 1, 2 and 4 panels
  const ColumnLayout* columns = nullptr;
  int64_t panel = -1;
  int64_t channel = 0;  // the first one
  int64_t left = 0;     // channels
  ClampAt clamp = kClampValues;
  int64_t lane_offsets[kLanes] = {};  // of each lane, from the first channel of a pixel of y

  Block(const DepthwiseArgs& args, uint8_t* memory)
      : a(args),
        s(args.shape),
        requantize(args.y_qparams),
        k_groups(s.k_groups()),
        taps(s.kernel_width),
        shared_rows(args.shared_rows()),
        end_of_x(args.x + ((s.batch * s.planes * s.height * s.width - 1) * args.x_step + s.in_channels)),
        panels_(s.panels()),
        panel_bytes_(s.panel_bytes()) {
    memory += (-reinterpret_cast<uintptr_t>(memory)) % DepthwiseArgs::kRegisterBytes;
    const auto take = [&memory](int64_t bytes) {
      uint8_t* const from = memory;
      memory += round_up(bytes, DepthwiseArgs::kRegisterBytes);
      return from;
    };
    packed_columns = take(a.column_bytes());
    results = take(DepthwiseArgs::kResultBytes);
    weights = take(a.weight_bytes());
    initial = reinterpret_cast<int32_t*>(take(kQuarters * kRegister));
    scale = reinterpret_cast<float*>(take(kQuarters * kRegister));
    bias = reinterpret_cast<float*>(take(kQuarters * kRegister));
    padding = take(kRegister);
    padding_column = take(kKGroupRegisters * kRegister);
    rows = reinterpret_cast<const uint8_t**>(take(k_groups * kKGroup * sizeof(const uint8_t*)));
    for (ColumnLayout& each : layouts) each.taps = reinterpret_cast<int64_t*>(take(taps * sizeof(int64_t)));
  }

  // Takes V panels from panel number `first` on.
  template <int V, bool kSigned>
  void prepare(int64_t first) {
    if (first == panel) return;
    panel = first;
    channel = first * kPanel;
    left = s.channels - channel < V * kPanel ? s.channels - channel : V * kPanel;
    ColumnLayout& layout = layouts[V / 2];
    if (layout.outputs == 0) layout.lay_out(a, V);
    columns = &layout;
    for (int64_t i = 0; i < kLanes; ++i) lane_offsets[i] = i / V * s.channels + i % V * kPanel;
    prepare_weights<V>();
    prepare_constants<V, kSigned>();
  }

  // Returns the weights of one of the shared rows.
  const uint8_t* weights_of(int64_t row) const { return weights + row * (taps * k_groups * kKGroupRegisters * kRegister); }

  // Finds where the rows of the window begin, for a row of the result and those that share its packing.
  void find_rows(int64_t plane, int64_t out_row) const {
    const int64_t image = plane / s.out_planes;
    const int64_t front = plane % s.out_planes * s.stride_planes - s.front;
    const int64_t top = out_row * s.stride_height - s.top;
    const int64_t height = s.kernel_height + (shared_rows - 1) * s.stride_height;
    int64_t i = 0;
    for (int64_t k = 0; k < s.kernel_planes; ++k) {
      const int64_t d = front + k * s.dilation_planes;
      for (int64_t j = 0; j < height; ++j) {
        const int64_t h = top + j * s.dilation_height;
        const bool inside = d >= 0 && d < s.planes && h >= 0 && h < s.height;
        rows[i++] = inside ? a.x + ((image * s.planes + d) * s.height + h) * s.width * a.x_step + channel : nullptr;
      }
    }
    while (i < k_groups * kKGroup) rows[i++] = nullptr;
  }

 private:
  const int64_t panels_, panel_bytes_;

  // Brings the packed weights of V panels into the order of registers. For the second of the rows that share a packing they
  // are moved down by the stride, for the third by twice as much.
  template <int V>
  void prepare_weights() {
    const uint8_t* lanes[kLanes];
    for (int64_t i = 0; i < kLanes; ++i) {  // What lanes without a panel compute is never stored.
      const int64_t from = panel + i % V < panels_ ? panel + i % V : panel;
      lanes[i] = reinterpret_cast<const uint8_t*>(a.weight) + from * panel_bytes_;
    }
    // Stores of bytes might change any member, so compilers would load these again and again.
    const int64_t k_blocks = taps, groups = k_groups, row_count = shared_rows;
    uint8_t* const first = weights;
    uint8_t* to = first;
    for (int64_t i = 0; i < k_blocks * groups * kQuarters; ++i, to += kParts * kRegister) {
      store_weights(to, gather_lanes(lanes, i * kLaneBytes));
    }
    const auto packed = [&](int64_t i) {
      return kParts == 1 ? load_bytes(first + i * kRegister) : gather_lanes(lanes, i * kLaneBytes);
    };
    for (int64_t row = 1; row < row_count; ++row) {
      const int64_t moved = row * s.stride_height / kKGroup;
      const int shift = static_cast<int>(row * s.stride_height % kKGroup);
      int64_t from = -moved * kQuarters;
      for (int64_t tap = 0; tap < k_blocks; ++tap) {
        for (int64_t k_group = 0; k_group < groups; ++k_group) {
          for (int64_t k = 0; k < kQuarters; ++k, ++from, to += kParts * kRegister) {
            const ByteLanes here = k_group >= moved ? packed(from) : ByteLanes{};
            const ByteLanes before = k_group > moved ? packed(from - kQuarters) : ByteLanes{};
            store_weights(to, shift_k_groups(here, before, shift));
          }
        }
      }
    }
  }

  // Adds kPixelShift times the sum of the weights of each channel (cpu/loops/pixel_shift.h).
  template <int V>
  void add_pixel_shift(int32_t* corrections) const {
    for (int64_t v = 0; v < V && panel + v < panels_; ++v) {
      const int8_t* const w = a.weight + (panel + v) * panel_bytes_;
      int32_t sums[kPanel] = {};
      for (int64_t i = 0; i < panel_bytes_; i += kPanelGroupBytes) {
        for (int64_t c = 0; c < kPanelGroupBytes; ++c) sums[c / kKGroup] += w[i + c];
      }
      for (int64_t c = 0; c < kPanel; ++c) {
        int32_t& to = corrections[v * kPanel + c];
        to = add_modulo(to, kPixelShift * sums[c]);
      }
    }
  }

  template <int V, bool kSigned>
  void prepare_constants() {
    int32_t corrections[V * kPanel] = {};
    float scales[V * kPanel] = {}, biases[V * kPanel] = {};
    std::memcpy(corrections, a.zero_point_correction + channel, left * sizeof(int32_t));
    if constexpr (kPixelShift != 0) add_pixel_shift<V>(corrections);
    std::memcpy(scales, a.scale + channel, left * sizeof(float));
    std::memcpy(biases, a.bias + channel, left * sizeof(float));
    clamp = clamp_of_bytes(a, channel, left);
    for (int64_t k = 0; k < kQuarters; ++k) {
      for (int64_t i = 0; i < kLanes; ++i) {
        const int64_t from = i % V * kPanel + k * 4, to = k * kQuarterFloats + i * 4;
        std::memcpy(initial + to, corrections + from, kLaneBytes);
        std::memcpy(scale + to, scales + from, kLaneBytes);
        std::memcpy(bias + to, biases + from, kLaneBytes);
      }
    }
    std::memset(padding, 0, kRegister);
    for (int64_t i = 0; i < kLanes / V; ++i) std::memcpy(padding + i * V * kPanel, a.padding_values + channel, left);
    const ByteLanes bytes = flip_bytes(load_bytes(padding), kPixelFlip<kSigned>);
    const ByteLanes same[kKGroup] = {bytes, bytes, bytes, bytes};
    store_column(same, padding_column, kRegister);
  }
};

}  // namespace
}  // namespace FXQ_ISA
}  // namespace fxquant
