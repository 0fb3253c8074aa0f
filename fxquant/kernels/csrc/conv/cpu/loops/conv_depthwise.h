// Depthwise convolution: each output channel reads one input channel. No torch.
//
// LHS: columns of the window are packed as [columns][K groups][panels][kPanel channels][kKGroup bytes]: the bytes of a K
// group are kKGroup rows of the window, of all its planes. Neighbouring pixels share columns, where their windows overlap.
// RHS: the packed weight, whose K blocks are columns of taps.
//
//   for strip, N block in tasks:            # in parallel; a strip lies in one row of a plane, or in two
//       for V panels of the N block:
//           pack the columns of as many pixels as there is room for
//           for R pixels:                   # tile(): R * V registers hold accumulators
//               accumulators = zero point correction
//               for column of taps, K group:
//                   load V registers of weights
//                   for each of R pixels: load V registers of columns, multiply, add
//               epilogue: scale, bias, residual, requantize, store
//
// Two rows of a plane are computed from one packing of four rows of x: for the second one, the weights are shifted by one
// byte within their K groups.
#pragma once
#include "conv/cpu/loops/conv_epilogue.h"
#include "cpu/loops/interleave.h"
#include "cpu/loops/tile.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

// The outputs of one strip, and their windows.
struct Depthwise {
  const ConvArgs& a;
  const Epilogue& epilogue;
  const int64_t k_groups = a.shape.k_groups();
  const int64_t taps = a.shape.kernel_width;
  int64_t plane = 0, out_row = 0, out_rows = 1, panel = 0, panels = 1;
  bool shares = false;  // Neighbouring outputs share packed columns.
  // Packed columns from one output to the next, and from one tap to the next.
  int64_t output_step = 0, tap_step = 0;
  const int64_t most_lines = a.most_lines();
  uint8_t* const lines;  // [columns][K groups][panels] of kPanelGroupBytes
  const uint8_t** const rows;
  int64_t* const steps;

  // The memory is that of ConvArgs::scratch(). A convolution that is not depthwise uses it otherwise.
  Depthwise(const ConvArgs& args, const Epilogue& end, uint8_t* memory)
      : a(args),
        epilogue(end),
        lines(memory + (-reinterpret_cast<uintptr_t>(memory)) % kPanelGroupBytes),
        rows(reinterpret_cast<const uint8_t**>(lines + most_lines * kPanelGroupBytes)),
        steps(reinterpret_cast<int64_t*>(rows + args.window_rows())) {}

  // Returns how many outputs there is room for, at least one if panels is 1, and chooses whether they share columns.
  int64_t outputs_that_fit(int64_t wanted) {
    const ConvShape& s = a.shape;
    const int64_t columns = most_lines / (k_groups * panels);
    const int64_t reach = (taps - 1) * s.dilation_width + 1;
    const int64_t together = columns < reach ? 0 : (columns - reach) / s.stride_width + 1;
    const int64_t apart = columns / taps;
    shares = s.stride_width <= taps && (together >= wanted || together >= apart);
    output_step = shares ? s.stride_width : taps;
    tap_step = shares ? s.dilation_width : 1;
    const int64_t room = shares ? together : apart;
    return room < wanted ? room : wanted;
  }

  // Packs the columns of `count` outputs, from number `first` of the row on.
  template <int V, bool kSigned>
  void pack_columns(int64_t first, int64_t count) {
    const ConvShape& s = a.shape;
    const int64_t left = first * s.stride_width - s.left;
    find_rows();
    if (shares) {
      const int64_t columns = (count - 1) * output_step + (taps - 1) * tap_step + 1;
      for (int64_t c = 0; c < columns; ++c) copy_column<V, kSigned>(left + c, c);
      return;
    }
    for (int64_t n = 0; n < count; ++n) {
      for (int64_t j = 0; j < taps; ++j) {
        copy_column<V, kSigned>(left + n * s.stride_width + j * s.dilation_width, n * taps + j);
      }
    }
  }

  // Finds the pointer and the pixel stride of each row of the window. A row of padding has stride 0.
  void find_rows() {
    const ConvShape& s = a.shape;
    const int64_t image = plane / s.out_planes;
    const int64_t front = plane % s.out_planes * s.stride_planes - s.front;
    const int64_t top = out_row * s.stride_height - s.top;
    int64_t i = 0;
    const auto add = [&](int64_t d, int64_t h) {
      const bool inside = d >= 0 && d < s.planes && h >= 0 && h < s.height;
      rows[i] = (inside ? a.x + ((image * s.planes + d) * s.height + h) * s.width * s.depth : a.padding_values) +
                panel * kPanel;
      steps[i++] = inside ? s.depth : 0;
    };
    for (int64_t k = 0; k < s.kernel_planes; ++k) {
      for (int64_t j = 0; j < s.kernel_height + out_rows - 1; ++j) {
        add(front + k * s.dilation_planes, top + j * s.dilation_height);
      }
    }
    while (i < k_groups * kKGroup) add(-1, -1);
  }

  // Packs column w of x, or padding, for V panels.
  template <int V, bool kSigned>
  void copy_column(int64_t w, int64_t to_column) {
    constexpr uint8_t kFlip = kSigned ? 0x80 : 0;
    const uint8_t* padding_values = a.padding_values + panel * kPanel;
    const bool inside = w >= 0 && w < a.shape.width;
    const int64_t rest = a.shape.channels - panel * kPanel;
    uint8_t* to = lines + to_column * k_groups * V * kPanelGroupBytes;
    for (int64_t i = 0; i < k_groups * kKGroup; i += kKGroup, to += V * kPanelGroupBytes) {
      const uint8_t* from[kKGroup];
      FXQ_UNROLL
      for (int64_t k = 0; k < kKGroup; ++k) from[k] = inside ? rows[i + k] + w * steps[i + k] : padding_values;
      if (rest >= V * kPanel) {
        interleave_panels<V>(from, kFlip, to);
        continue;
      }
      uint8_t some[kKGroup][V * kPanel] = {};
      for (int64_t k = 0; k < kKGroup; ++k) std::memcpy(some[k], from[k], rest);
      const uint8_t* const whole[kKGroup] = {some[0], some[1], some[2], some[3]};
      interleave_panels<V>(whole, kFlip, to);
    }
  }

  // Computes a tile: R outputs from number `output` on, which is pixel `row` of the result, times V panels. kSecond: of the
  // second of two rows of a plane.
  template <int R, int V, bool kSecond>
  void tile(int64_t output, int64_t row) const {
    const int64_t left = a.shape.channels - panel * kPanel;
    const int8_t* w = a.weight + panel * a.shape.panel_bytes();
    // Start at the correction for the zero point of x.
    Accumulators initial[V];
    load_initial<V>(initial, a.zero_point_correction + panel * kPanel, left);
    Accumulators acc[R][V];
    init_rows<R, V>(acc, initial);
    // Add the products of each column of taps.
    const int64_t column = k_groups * V * kPanelGroupBytes;
    for (int64_t j = 0; j < taps; ++j) {
      const uint8_t* x = lines + (output * output_step + j * tap_step) * column;
      for (int64_t q = 0; q < k_groups; ++q, x += V * kPanelGroupBytes, w += kPanelGroupBytes) {
        Weights weights[V];
        load_panels<V, kSecond>(weights, w, a.shape.panel_bytes());
        add_lines<R, V>(acc, x, output_step * column, weights);
      }
    }
    store_rows<R, V>(Epilogue(epilogue), acc, row, panel * kPanel, left);
  }

  template <int R, int V, bool kSecond>
  void tiles(int64_t output, int64_t count, int64_t row) const {
    for (; output + R <= count; output += R) tile<R, V, kSecond>(output, row + output);
    if constexpr (R > 1) tiles<R / 2, V, kSecond>(output, count, row);
  }

  // Computes `count` outputs from number `first` of the row on, for `wanted` panels, V at a time, then fewer.
  template <int V, bool kSigned>
  void run(int64_t first, int64_t count, int64_t wanted) {
    if constexpr (V > 1) {
      if (wanted < V || k_groups * taps * V > most_lines) return run<V - 1, kSigned>(first, count, wanted);
    }
    panels = V;
    for (const int64_t end = panel + wanted; panel + V <= end; panel += V, wanted -= V) {
      for (int64_t done = 0; done < count;) {
        const int64_t some = outputs_that_fit(count - done);
        pack_columns<V, kSigned>(first + done, some);
        const int64_t row = (plane * a.shape.out_height + out_row) * a.shape.out_width + first + done;
        tiles<rows_of_tile(V), V, false>(0, some, row);
        if (out_rows > 1) tiles<rows_of_tile(V), V, true>(0, some, row + a.shape.out_width);
        done += some;
      }
    }
    if constexpr (V > 1) {
      if (wanted > 0) run<V - 1, kSigned>(first, count, wanted);
    }
  }
};

}  // namespace
}  // namespace FXQ_ISA
}  // namespace fxquant
