#include "conv/cpu/loops/conv2d.h"

#include "conv/cpu/loops/conv_depthwise.h"
#include "conv/cpu/loops/conv_tile.h"
#include "conv/cpu/loops/deferred_lookup.h"
#include "conv/cpu/loops/tap_pointers.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

// All tiles of a block of panels.
struct NBlock {
  const ConvArgs& a;
  const Epilogue& epilogue;
  int64_t count = a.shape.k_blocks();
  int64_t width = 0;  // panels of it
  int64_t tail =
      a.shape.has_few_channels() ? 0 : a.shape.k_block_bytes() % kKGroup;  // what is gathered may be read further
  int64_t whole = a.shape.k_groups() - (tail != 0);                   // quads
  int64_t shift = 0;                                               // from a pixel's first channel to the bundle's
  const int8_t* weight = nullptr;
  int64_t channel = 0;
  int64_t left = 0;  // channels of the bundle, from there on

  // R rows from `row` on, V times 16 channels.
  template <int R, int V, bool kSigned>
  void tile(const uint8_t* const* pointers, int64_t row) const {
    const int8_t* w = weight;
    const int64_t step = width * kPanel * kKGroup;
    Accumulators initial[V];
    load_initial<V>(initial, a.zero_point_correction + channel, left);
    Accumulators acc[R][V];
    init_rows<R, V>(acc, initial);
    for (int64_t i = 0; i < count; ++i, pointers += kStripRows) {
      const uint8_t* x[R];
      FXQ_UNROLL
      for (int r = 0; r < R; ++r) x[r] = pointers[r] + shift;
      Weights weights[V];
      for (int64_t k = 0; k < whole; ++k, w += step) {
        load_panels<V>(weights, w, kPanel * kKGroup);
        add_pixels<R, V, kSigned>(acc, x, k * kKGroup, weights);
      }
      if (tail != 0) {  // x may end here
        load_panels<V>(weights, w, kPanel * kKGroup);
        add_pixel_tails<R, V, kSigned>(acc, x, whole * kKGroup, tail, weights);
        w += step;
      }
    }
    store_rows<R, V>(Epilogue(epilogue), acc, row, channel, left);
  }

  // Rows from r to the last, R at a time, then less.
  template <int R, int V, bool kSigned>
  void tiles(const Strip& strip, int64_t r) const {
    for (; r + R <= strip.count; r += R) tile<R, V, kSigned>(strip.pointers + r, strip.first + r);
    if constexpr (R > 1) {
      if (r < strip.count) tiles<R / 2, V, kSigned>(strip, r);
    }
  }

  // As many panels, V at a time, then less.
  template <int V, bool kSigned>
  void run(const Strip& strip, int64_t panels) {
    for (; panels >= V; panels -= V, weight += V * kPanel * kKGroup, channel += V * kPanel, left -= V * kPanel) {
      tiles<rows_of_tile(V), V, kSigned>(strip, 0);
    }
    if constexpr (V > 1) {
      if (panels > 0) run<V - 1, kSigned>(strip, panels);
    }
  }
};

template <bool kSigned>
void for_each_tile(const ConvArgs& a, int64_t begin, int64_t end, uint8_t* scratch) {
  const ConvShape& s = a.shape;
  const bool depthwise = s.depthwise();
  const int64_t strips = a.strips(), blocks = a.n_blocks(), bundle_blocks = s.n_blocks(), row_strips = a.row_strips();
  const int64_t most = a.strips_per_round(), plane_strips = a.plane_strips();
  const int64_t panels = s.panels(), group_bundle_channels = s.group_bundle_channels(),
                group_bundle_depth = s.group_bundle_depth();
  const Epilogue epilogue(a);
  Strip strip(a, scratch);
  Depthwise window(a, epilogue, scratch);
  NBlock tiles{a, epilogue};
  DeferredLookup lookup{a};
  int64_t found = -1;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t column = i / (most * blocks);
    const int64_t inside = i - column * most * blocks;
    const int64_t tail = strips - column * most;
    const int64_t height = tail < most ? tail : most;
    const int64_t block = inside / height;
    const int64_t number = column * most + inside % height;
    const int64_t bundle = block / bundle_blocks;
    const int64_t first = s.first_panel(block % bundle_blocks);
    const int64_t last = s.first_panel(block % bundle_blocks + 1);
    if (depthwise) {
      const int64_t line = number % plane_strips / row_strips * a.strip_lines();
      const int64_t from = number % row_strips * kStripRows;
      const int64_t to = from + kStripRows < s.out_width ? from + kStripRows : s.out_width;
      window.plane = number / plane_strips;
      window.out_row = line;
      window.out_rows = s.out_height - line < a.strip_lines() ? s.out_height - line : a.strip_lines();
      const int64_t panel = block * kNBlockPanels;
      const int64_t count = panels - panel < kNBlockPanels ? panels - panel : kNBlockPanels;
      window.panel = panel;
      window.run<kVectors, kSigned>(from, to - from, count);
      if (a.table != nullptr) {
        const int64_t row = (window.plane * s.out_height + line) * s.out_width + from;
        const int64_t left = s.channels - panel * kPanel;
        const int64_t channels = left < count * kPanel ? left : count * kPanel;
        lookup.next({a, window.out_rows, s.out_width, row, to - from, panel * kPanel, channels});
      }
      continue;
    }
    if (number != found) strip.find(number * kStripRows, s.rows());
    found = number;
    tiles.weight = a.weight + (bundle * panels + first) * s.panel_bytes();
    tiles.width = last - first;
    tiles.shift = bundle * group_bundle_depth;
    tiles.channel = bundle * group_bundle_channels + first * kPanel;
    tiles.left = group_bundle_channels - first * kPanel;
    const int64_t channel = tiles.channel;
    const int64_t channels = tiles.left < tiles.width * kPanel ? tiles.left : tiles.width * kPanel;
    tiles.run<kVectors, kSigned>(strip, last - first);
    if (a.table != nullptr) lookup.next({a, 1, 0, strip.first, strip.count, channel, channels});
  }
  lookup.finish();
}

}  // namespace

void conv_loop(const ConvArgs& args, int64_t begin, int64_t end, uint8_t* scratch) {
  args.x_signed ? for_each_tile<true>(args, begin, end, scratch) : for_each_tile<false>(args, begin, end, scratch);
}

}  // namespace FXQ_ISA
}  // namespace fxquant
