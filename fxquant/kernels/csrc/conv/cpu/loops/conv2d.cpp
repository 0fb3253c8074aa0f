// int8 convolution over one to three dimensions, and linear layers, which are convolutions of one tap: all but depthwise ones.
// It runs on instruction sets without tile registers, and, beside oneDNN's kernels, for products that are too small for these
// (prefers_brgemm of cpu/brgemm.h).
//
// LHS: the input, bytes in channels_last order. It is not packed: for each pixel of a strip, tap_pointers.h finds the
// pointers to its K blocks. With fewer than 16 channels it copies rows of taps first, with padding. Bytes of int8 are read
// as uint8 by flipping the sign bit.
// RHS: the packed weight, as conv_shape.h draws it. Each tile of R pixels reads the weights of its V panels once: from begin to
// end where V are all panels of the N block, else the K groups of the other panels are skipped.
//
// R x V is 6 x 4 with AVX-512 VNNI, 6 x 2 with AVX-512, 2 x 1 with AVX2, 4 x 1 with the dot products of ARM, and 1 x 1 without
// (kRows and kMostPanels in cpu/loops/products.h). With fewer panels R is up to twice that, and smaller for the last pixels of a strip.
//
//   for strip, N block in tasks:                # in parallel
//       find the pointers of the strip's pixels
//       for R pixels, V panels of the N block:  # tile(): R * V accumulators stay in registers
//           accumulators = zero point correction  # and kPixelShift * sum of the weights (cpu/loops/pixel_shift.h)
//           for K block:
//               for K group:
//                   load V registers of weights
//                   for each of R pixels: broadcast kKGroup bytes, multiply, add
//           epilogue: scale, bias, residual, requantize, store
//
// The steps of a tile stand in other files, which convolutions, linear layers and matrix products share: load_initial,
// init_rows, load_panels, add_pixels in cpu/loops/tile.h; the multiplication itself, add_products, in cpu/loops/products.h;
// the epilogue in conv_epilogue.h, whose last step, requantize and store, is in cpu/loops/output_store.h.
//
// A depthwise convolution has a loop nest of its own: depthwise.cpp.
#include "conv/cpu/loops/conv2d.h"

#include "conv/cpu/loops/conv_epilogue.h"
#include "conv/cpu/loops/deferred_lookup.h"
#include "conv/cpu/loops/tap_pointers.h"
#include "cpu/loops/tile.h"

namespace fxquant {
namespace FXQ_ISA {  // setup.py compiles a loop once for each instruction set that changes it, and names it so
namespace {

// The tiles of one N block.
struct NBlock {
  const Conv2dArgs& a;
  const Epilogue& epilogue;
  int64_t k_blocks = a.shape.k_blocks();
  int64_t block_panels = 0;
  // Bytes of the last K group of a K block where it is not full, else 0. Copied rows of taps may be read kKGroup bytes
  // beyond their end, so they need no tail: the weights there are zero.
  int64_t tail = a.shape.has_few_channels() ? 0 : a.shape.k_block_bytes() % kKGroup;
  int64_t full_k_groups = a.shape.k_groups() - (tail != 0);  // K groups of kKGroup bytes
  int64_t bundle_offset = 0;  // from a pixel's first channel to that of the group bundle
  const int8_t* weight = nullptr;
  int64_t channel = 0;
  int64_t channels_left = 0;  // of the group bundle, from `channel` on
  const int32_t* initial_sums = nullptr;  // of the channels from `channel` on

  // Computes a tile: R pixels of the result, from number `pixel` on, times V panels. The pointers to the input of those
  // pixels lie as [K blocks][kStripPixels].
  template <int R, int V, bool kSigned>
  void tile(const uint8_t* const* pointers, int64_t pixel) const {
    const int8_t* w = weight;
    const int64_t k_group_bytes = block_panels * kPanelGroupBytes;  // from the weights of a K group to those of the next
    // Start at the correction for the zero point of x, and for kPixelShift.
    Accumulators initial[V];
    load_initial<V>(initial, initial_sums, channels_left);
    Accumulators acc[R][V];
    init_rows<R, V>(acc, initial);
    // Add the products of each K block: for each K group, acc[r][v] += x[r] * weights[v].
    for (int64_t i = 0; i < k_blocks; ++i, pointers += kStripPixels) {
      const uint8_t* x[R];
      FXQ_UNROLL
      for (int r = 0; r < R; ++r) x[r] = pointers[r] + bundle_offset;
      Weights weights[V];
      for (int64_t k = 0; k < full_k_groups; ++k, w += k_group_bytes) {
        load_panels<V>(weights, w, kPanelGroupBytes);
        add_pixels<R, V, kSigned>(acc, x, k * kKGroup, weights);
      }
      if (tail != 0) {  // The memory of x may end here.
        load_panels<V>(weights, w, kPanelGroupBytes);
        add_pixel_tails<R, V, kSigned>(acc, x, full_k_groups * kKGroup, tail, weights);
        w += k_group_bytes;
      }
    }
    // A local copy of the epilogue: stores of bytes may alias the original, whose fields would be loaded again after each.
    Epilogue(epilogue).template store_tile<R, V>(acc, pixel, channel, channels_left);
  }

  // Covers the pixels of the strip from r on by tiles of R pixels, then of fewer.
  template <int R, int V, bool kSigned>
  void tiles(const Strip& strip, int64_t r) const {
    for (; r + R <= strip.count; r += R) tile<R, V, kSigned>(strip.pointers + r, strip.first + r);
    if constexpr (R > 1) {
      if (r < strip.count) tiles<R / 2, V, kSigned>(strip, r);
    }
  }

  // Returns the initial accumulators of V panels, which it computes in `sums`.
  template <int V>
  const int32_t* shift_initial(int32_t* sums) const {
    for (int v = 0; v < V; ++v) {
      for (int64_t c = v * kPanel; c < (v + 1) * kPanel; ++c) sums[c] = c < channels_left ? initial_sums[c] : 0;
      add_weight_sums(weight + v * kPanelGroupBytes, k_blocks * a.shape.k_groups(), block_panels * kPanelGroupBytes, 0,
                      sums + v * kPanel);
    }
    return sums;
  }

  // Covers so many panels by tiles of V panels, then of fewer.
  template <int V, bool kSigned>
  void run(const Strip& strip, int64_t panels) {
    for (; panels >= V; panels -= V) {
      initial_sums = a.zero_point_correction + channel;
      int32_t shifted[V * kPanel];
      if constexpr (kPixelShift != 0) initial_sums = shift_initial<V>(shifted);
      tiles<rows_of_tile(V), V, kSigned>(strip, 0);  // as many rows as fit the registers (cpu/loops/tile.h)
      weight += V * kPanelGroupBytes;
      channel += V * kPanel;
      channels_left -= V * kPanel;
    }
    if constexpr (V > 1) {
      if (panels > 0) run<V - 1, kSigned>(strip, panels);
    }
  }
};

// The order of tasks: an M block is some successive strips, and goes through all N blocks before the next M block. Conv2dArgs
// (conv2d.h) counts them.
struct TaskOrder {
  int64_t strips;
  int64_t n_blocks;     // of all group bundles
  int64_t per_m_block;  // strips

  explicit TaskOrder(const Conv2dArgs& a)
      : strips(a.strips()), n_blocks(a.all_n_blocks()), per_m_block(a.strips_per_m_block()) {}

  // Calls f(strip, N block) for the tasks begin <= i < end.
  template <typename F>
  FXQ_INLINE void for_each(int64_t begin, int64_t end, F f) const {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t m_block = i / (per_m_block * n_blocks);
      const int64_t first = m_block * per_m_block;
      const int64_t inside = i - first * n_blocks;
      const int64_t count = strips - first < per_m_block ? strips - first : per_m_block;
      f(first + inside % count, inside / count);
    }
  }
};

// Runs the tasks begin <= i < end.
template <bool kSigned>
void run_tasks(const Conv2dArgs& a, int64_t begin, int64_t end, uint8_t* scratch) {
  const ConvShape& s = a.shape;
  const int64_t n_blocks = s.n_blocks(), panels = s.panels();  // of one group bundle
  const int64_t channels = s.group_bundle_channels(), in_channels = s.group_bundle_in_channels();
  const Epilogue epilogue(a);
  Strip strip(a, scratch);  // its pointers, and copies of rows of taps, lie in the scratch memory: see tap_pointers.h
  NBlock block{a, epilogue};
  DeferredLookup lookup{a};
  int64_t found = -1;  // the strip whose pointers were found last
  TaskOrder(a).for_each(begin, end, [&](int64_t number, int64_t block_number) {
    if (number != found) strip.find(number * kStripPixels, s.out_pixels());
    found = number;
    // Where the weights and the channels of the N block begin.
    const int64_t bundle = block_number / n_blocks;
    const int64_t first = s.first_panel(block_number % n_blocks);
    block.weight = a.weight + (bundle * panels + first) * s.panel_bytes();
    block.block_panels = s.first_panel(block_number % n_blocks + 1) - first;
    block.bundle_offset = bundle * in_channels;
    block.channel = bundle * channels + first * kPanel;
    block.channels_left = channels - first * kPanel;
    const int64_t channel = block.channel;
    const int64_t block_channels = block.block_panels * kPanel;
    // Channels that the N block stores: its last panel may be partly empty.
    const int64_t written = block.channels_left < block_channels ? block.channels_left : block_channels;
    block.template run<kMostPanels, kSigned>(strip, block.block_panels);
    // A lookup table was fused into the loop: note what this task stored, and look up what this thread's task before stored.
    if (a.table != nullptr) lookup.next(strip.first, strip.count, channel, written);
  });
  lookup.finish();
}

}  // namespace

void conv_loop(const Conv2dArgs& args, int64_t begin, int64_t end, uint8_t* scratch) {
  args.x_signed ? run_tasks<true>(args, begin, end, scratch) : run_tasks<false>(args, begin, end, scratch);
}

}  // namespace FXQ_ISA
}  // namespace fxquant
