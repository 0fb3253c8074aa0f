// int8 convolution by the framework's kernels, which use tile registers (AMX): implicit im2col, one strip at a time.
//
// LHS: the K blocks of a strip's pixels are copied to rows of K bytes (lhs_buffer), unless x has them so already.
// RHS: the packed weight, as conv_shape.h draws it: an N block is a matrix [K / kKGroup][channels][kKGroup], as the tile
// instructions want it.
//
//   for strip, group bundle, N block in tasks:  # in parallel
//       pack the LHS                            # once for all N blocks of the strip and group bundle
//       for kBrgemmRows rows of the strip:
//           accumulators = LHS * RHS            # multiply_block() of brgemm_block.h
//           epilogue: zero point correction, scale, bias, residual, requantize, store
#include "conv/cpu/loops/conv2d_brgemm.h"

#include "conv/cpu/loops/conv_epilogue.h"
#include "conv/cpu/loops/deferred_lookup.h"
#include "conv/cpu/loops/tap_pointers.h"
#include "cpu/loops/brgemm_block.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

// The tasks of one thread, and its memory.
struct ConvTask {
  const BrgemmConvArgs& a;
  const int64_t k_size;
  const Epilogue epilogue;
  LhsBuffer lhs_buffer;
  Strip strip;
  DeferredLookup lookup;
  alignas(64) int32_t acc[kBrgemmRows * kBrgemmColumns];
  alignas(64) int32_t correction[kBrgemmColumns];

  ConvTask(const BrgemmConvArgs& args, uint8_t* scratch)
      : a(args),
        k_size(args.k_size()),
        epilogue(args),
        lhs_buffer(scratch + args.Conv2dArgs::scratch(), args.strip_rows, k_size),
        strip(args, scratch),
        lookup{args} {}

  // Returns the LHS of `count` pixels from `row` on for a group bundle: x itself where it has that form, else a copy.
  Lhs pack_lhs(int64_t row, int64_t count, int64_t bundle) {
    const ConvShape& s = a.shape;
    const bool as_it_is = s.is_pointwise() && s.groups == 1 && !a.x_signed && s.in_channels % kKGroup == 0;
    if (as_it_is && count % kBrgemmRowMultiple == 0) return {a.x + row * s.in_channels, s.in_channels, kBrgemmK};
    const int64_t shift = bundle * s.group_bundle_in_channels();
    const int64_t k_block_bytes = s.k_block_bytes(), k_blocks = s.k_blocks(), step = s.k_groups() * kKGroup;
    const uint8_t flip = a.x_signed ? 0x80 : 0;
    for (int64_t done = 0; done < count; done += strip.count) {
      strip.find(row + done, row + count);
      const uint8_t* const* at = strip.pointers;
      for (int64_t i = 0; i < k_blocks; ++i, at += kStripPixels) {
        lhs_buffer.copy(at, shift, strip.count, done, i * step, k_block_bytes, flip);
      }
    }
    return lhs_buffer.operand(0);
  }

  // Runs the epilogue of `count` rows of V panels.
  template <int V>
  void store(int64_t row, int64_t count, int64_t channel, int64_t left) const {
    const Epilogue end(epilogue);
    for (int64_t r = 0; r < count; ++r) {
      Accumulators each[V];
      FXQ_UNROLL
      for (int v = 0; v < V; ++v) each[v] = accumulators_of_sum(acc + (r * V + v) * kPanel, correction + v * kPanel);
      end.store<V>(each, row + r, channel, left);
    }
  }

  // Multiplies the LHS with one N block, and stores the result.
  void block(const Lhs& x, int64_t row, int64_t count, int64_t bundle, int64_t number) {
    const ConvShape& s = a.shape;
    const int64_t first = s.first_panel(number), width = s.first_panel(number + 1) - first;
    const int64_t channel = bundle * s.group_bundle_channels() + first * kPanel;
    const int64_t left = s.group_bundle_channels() - first * kPanel;  // from there on
    const int8_t* weight = a.weight + (bundle * s.panels() + first) * s.panel_bytes();
    for (int64_t c = 0; c < width * kPanel; ++c) correction[c] = c < left ? a.zero_point_correction[channel + c] : 0;
    for (int64_t r = 0; r < count; r += kBrgemmRows) {
      const int64_t some = count - r < kBrgemmRows ? count - r : kBrgemmRows;
      multiply_block(some, width * kPanel, k_size, {x.at + r * x.row_stride, x.row_stride, x.chunk}, weight, acc);
      switch (width) {
        case 1: store<1>(row + r, some, channel, left); break;
        case 2: store<2>(row + r, some, channel, left); break;
        case 3: store<3>(row + r, some, channel, left); break;
        default: store<4>(row + r, some, channel, left);
      }
      const int64_t channels = left < width * kPanel ? left : width * kPanel;
      if (a.table != nullptr) lookup.next(row + r, some, channel, channels);
    }
  }

  void run(int64_t begin, int64_t end) {
    const int64_t group_bundles = a.shape.group_bundles(), blocks = a.shape.n_blocks();
    Lhs x{};
    int64_t found = -1;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t bundle = i / blocks % group_bundles;
      const int64_t row = i / (blocks * group_bundles) * a.strip_rows;
      const int64_t rest = a.shape.out_pixels() - row;
      const int64_t count = rest < a.strip_rows ? rest : a.strip_rows;
      if (i / blocks != found) x = pack_lhs(row, count, bundle);
      found = i / blocks;
      block(x, row, count, bundle, i % blocks);
    }
    lookup.finish();
  }
};

}  // namespace

void conv_brgemm_loop(const BrgemmConvArgs& args, int64_t begin, int64_t end, uint8_t* scratch) {
  ConvTask(args, scratch).run(begin, end);
  brgemm_release();
}

}  // namespace FXQ_ISA
}  // namespace fxquant
