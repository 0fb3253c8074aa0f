#include "conv/cpu/loops/conv2d.h"

#include "conv/cpu/loops/conv_depthwise.h"
#include "conv/cpu/loops/conv_lookups.h"
#include "conv/cpu/loops/conv_pieces.h"
#include "conv/cpu/loops/conv_tile.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

// All tiles of a block of panels.
struct Block {
  const ConvArgs& a;
  const Epilogue& epilogue;
  int64_t count = a.shape.pieces();
  int64_t width = 0;  // panels of it
  int64_t rest = a.shape.has_few() ? 0 : a.shape.piece() % kQuad;  // what is gathered may be read further
  int64_t whole = a.shape.quads() - (rest != 0);                   // quads
  int64_t shift = 0;                                               // from a pixel's first channel to the bundle's
  const int8_t* weight = nullptr;
  int64_t channel = 0;
  int64_t left = 0;  // channels of the bundle, from there on

  // R rows from `row` on, V times 16 channels.
  template <int R, int V, bool kSigned>
  void tile(const uint8_t* const* pieces, int64_t row) const {
    const int8_t* w = weight;
    const int64_t step = width * kPanel * kQuad;
    Sums starts[V];
    load_starts<V>(starts, a.start + channel, left);
    Sums sums[R][V];
    start_rows<R, V>(sums, starts);
    for (int64_t i = 0; i < count; ++i, pieces += kStripRows) {
      const uint8_t* x[R];
      FXQ_UNROLL
      for (int r = 0; r < R; ++r) x[r] = pieces[r] + shift;
      Weights weights[V];
      for (int64_t k = 0; k < whole; ++k, w += step) {
        load_panels<V>(weights, w, kPanel * kQuad);
        add_pixels<R, V, kSigned>(sums, x, k * kQuad, weights);
      }
      if (rest != 0) {  // x may end here
        load_panels<V>(weights, w, kPanel * kQuad);
        add_rests<R, V, kSigned>(sums, x, whole * kQuad, rest, weights);
        w += step;
      }
    }
    store_rows<R, V>(Epilogue(epilogue), sums, row, channel, left);
  }

  // Rows from r to the last, R at a time, then less.
  template <int R, int V, bool kSigned>
  void tiles(const Strip& strip, int64_t r) const {
    for (; r + R <= strip.count; r += R) tile<R, V, kSigned>(strip.at + r, strip.first + r);
    if constexpr (R > 1) {
      if (r < strip.count) tiles<R / 2, V, kSigned>(strip, r);
    }
  }

  // As many panels, V at a time, then less.
  template <int V, bool kSigned>
  void run(const Strip& strip, int64_t panels) {
    for (; panels >= V; panels -= V, weight += V * kPanel * kQuad, channel += V * kPanel, left -= V * kPanel) {
      tiles<rows_of_tile(V), V, kSigned>(strip, 0);
    }
    if constexpr (V > 1) {
      if (panels > 0) run<V - 1, kSigned>(strip, panels);
    }
  }
};

template <bool kSigned>
void walk(const ConvArgs& a, int64_t begin, int64_t end, uint8_t* scratch) {
  const ConvShape& s = a.shape;
  const bool depthwise = s.depthwise();
  const int64_t strips = a.strips(), blocks = a.blocks(), bundle_blocks = s.blocks(), segments = a.segments();
  const int64_t most = a.column(), plane_strips = a.plane_strips();
  const int64_t panels = s.panels(), bundle_channels = s.bundle_channels(), bundle_depth = s.bundle_depth();
  const Epilogue epilogue(a);
  Strip strip(a, scratch);
  Depthwise window(a, epilogue, scratch);
  Block tiles{a, epilogue};
  Lookups lookups{a};
  int64_t found = -1;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t column = i / (most * blocks);
    const int64_t inside = i - column * most * blocks;
    const int64_t rest = strips - column * most;
    const int64_t height = rest < most ? rest : most;
    const int64_t block = inside / height;
    const int64_t number = column * most + inside % height;
    const int64_t bundle = block / bundle_blocks;
    const int64_t first = s.first_panel(block % bundle_blocks);
    const int64_t last = s.first_panel(block % bundle_blocks + 1);
    if (depthwise) {
      const int64_t line = number % plane_strips / segments * a.strip_lines();
      const int64_t from = number % segments * kStripRows;
      const int64_t to = from + kStripRows < s.out_width ? from + kStripRows : s.out_width;
      window.plane = number / plane_strips;
      window.out_row = line;
      window.out_rows = s.out_height - line < a.strip_lines() ? s.out_height - line : a.strip_lines();
      const int64_t panel = block * kBlockPanels;
      const int64_t count = panels - panel < kBlockPanels ? panels - panel : kBlockPanels;
      window.panel = panel;
      window.run<kVectors, kSigned>(from, to - from, count);
      if (a.table != nullptr) {
        const int64_t row = (window.plane * s.out_height + line) * s.out_width + from;
        const int64_t left = s.channels - panel * kPanel;
        const int64_t channels = left < count * kPanel ? left : count * kPanel;
        lookups.next({a, window.out_rows, s.out_width, row, to - from, panel * kPanel, channels});
      }
      continue;
    }
    if (number != found) strip.find(number * kStripRows, s.rows());
    found = number;
    tiles.weight = a.weight + (bundle * panels + first) * s.panel();
    tiles.width = last - first;
    tiles.shift = bundle * bundle_depth;
    tiles.channel = bundle * bundle_channels + first * kPanel;
    tiles.left = bundle_channels - first * kPanel;
    const int64_t channel = tiles.channel;
    const int64_t channels = tiles.left < tiles.width * kPanel ? tiles.left : tiles.width * kPanel;
    tiles.run<kVectors, kSigned>(strip, last - first);
    if (a.table != nullptr) lookups.next({a, 1, 0, strip.first, strip.count, channel, channels});
  }
  lookups.finish();
}

}  // namespace

void conv_loop(const ConvArgs& args, int64_t begin, int64_t end, uint8_t* scratch) {
  args.x_signed ? walk<true>(args, begin, end, scratch) : walk<false>(args, begin, end, scratch);
}

}  // namespace FXQ_ISA
}  // namespace fxquant
