#include "conv/cpu/loops/conv2d_brgemm.h"

#include "conv/cpu/loops/conv_epilogue.h"
#include "conv/cpu/loops/conv_lookups.h"
#include "conv/cpu/loops/conv_pieces.h"
#include "cpu/loops/brgemm_block.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

struct Walk {
  const BrgemmConvArgs& a;
  const int64_t depth;
  const Epilogue epilogue;
  Gathered gathered;
  Strip strip;
  Lookups lookups;
  alignas(64) int32_t sums[kProductRows * kProductColumns];
  alignas(64) int32_t start[kProductColumns];

  Walk(const BrgemmConvArgs& args, uint8_t* scratch)
      : a(args),
        depth(args.depth()),
        epilogue(args),
        gathered(scratch + args.ConvArgs::scratch(), args.strip_rows, depth),
        strip(args, scratch),
        lookups{args} {}

  // What `count` pixels from `row` on read of a bundle, where it lies if that is how it is wanted.
  Operand find(int64_t row, int64_t count, int64_t bundle) {
    const ConvShape& s = a.shape;
    const bool as_it_is = s.is_product() && s.groups == 1 && !a.x_signed && s.depth % kQuad == 0;
    if (as_it_is && count % kProductTail == 0) return {a.x + row * s.depth, s.depth, kProductDepth};
    const int64_t shift = bundle * s.bundle_depth();
    const int64_t piece = s.piece(), pieces = s.pieces(), step = s.quads() * kQuad;
    const uint8_t flip = a.x_signed ? 0x80 : 0;
    for (int64_t done = 0; done < count; done += strip.count) {
      strip.find(row + done, row + count);
      const uint8_t* const* at = strip.at;
      for (int64_t i = 0; i < pieces; ++i, at += kStripRows) {
        gathered.copy(at, shift, strip.count, done, i * step, piece, flip);
      }
    }
    return gathered.operand(0);
  }

  // V panels, from the sums on.
  template <int V>
  void finish(int64_t row, int64_t count, int64_t channel, int64_t left) const {
    const Epilogue end(epilogue);
    for (int64_t r = 0; r < count; ++r) {
      Sums each[V];
      FXQ_UNROLL
      for (int v = 0; v < V; ++v) each[v] = added(sums + (r * V + v) * kPanel, start + v * kPanel);
      end.store<V>(each, row + r, channel, left);
    }
  }

  void block(const Operand& x, int64_t row, int64_t count, int64_t bundle, int64_t number) {
    const ConvShape& s = a.shape;
    const int64_t first = s.first_panel(number), width = s.first_panel(number + 1) - first;
    const int64_t channel = bundle * s.bundle_channels() + first * kPanel;
    const int64_t left = s.bundle_channels() - first * kPanel;  // from there on
    const int8_t* weight = a.weight + (bundle * s.panels() + first) * s.panel();
    for (int64_t c = 0; c < width * kPanel; ++c) start[c] = c < left ? a.start[channel + c] : 0;
    for (int64_t r = 0; r < count; r += kProductRows) {
      const int64_t some = count - r < kProductRows ? count - r : kProductRows;
      multiply_block(some, width * kPanel, depth, {x.at + r * x.line, x.line, x.chunk}, weight, sums);
      switch (width) {
        case 1: finish<1>(row + r, some, channel, left); break;
        case 2: finish<2>(row + r, some, channel, left); break;
        case 3: finish<3>(row + r, some, channel, left); break;
        default: finish<4>(row + r, some, channel, left);
      }
      const int64_t channels = left < width * kPanel ? left : width * kPanel;
      if (a.table != nullptr) lookups.next({a, 1, 0, row + r, some, channel, channels});
    }
  }

  void run(int64_t begin, int64_t end) {
    const int64_t bundles = a.shape.bundles(), blocks = a.shape.blocks();
    Operand x{};
    int64_t found = -1;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t bundle = i / blocks % bundles;
      const int64_t row = i / (blocks * bundles) * a.strip_rows;
      const int64_t rest = a.shape.rows() - row;
      const int64_t count = rest < a.strip_rows ? rest : a.strip_rows;
      if (i / blocks != found) x = find(row, count, bundle);
      found = i / blocks;
      block(x, row, count, bundle, i % blocks);
    }
    lookups.finish();
  }
};

}  // namespace

void conv_brgemm_loop(const BrgemmConvArgs& args, int64_t begin, int64_t end, uint8_t* scratch) {
  Walk(args, scratch).run(begin, end);
  brgemm_release();
}

}  // namespace FXQ_ISA
}  // namespace fxquant
