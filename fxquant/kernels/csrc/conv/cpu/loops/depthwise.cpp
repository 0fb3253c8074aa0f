// Depthwise convolution: each output channel reads the input channel of the same number alone.
//
// LHS: the input, bytes in channels_last order. Four rows of x (a K group) are interleaved column by column. So the four bytes
// of a channel lie together, as the instruction that multiplies and adds four bytes wants them:
//
//   one column of 64 channels, 4 rows                            the packed column, 4 registers (quarters)
//   row 0   c0 c1 c2 ... c63          lane 0      lane 1      lane 2       lane 3
//   row 1   c0 c1 c2 ... c63    0   c0..c3      c16..c19    c32..c35     c48..c51       of each channel the bytes of
//   row 2   c0 c1 c2 ... c63    1   c4..c7      c20..c23    c36..c39     c52..c55       rows 0, 1, 2, 3
//   row 3   c0 c1 c2 ... c63    2   c8..c11     c24..c27    c40..c43     c56..c59
//                               3   c12..c15    c28..c31    c44..c47     c60..c63
//
// A lane is 16 bytes of a register, and one panel. This order costs eight instructions for 64 channels, and the instructions
// that pack accumulators to bytes restore the order of the channels. AVX2 has two lanes. Of fewer panels than a register has
// lanes, several successive pixels lie side by side.
//
// RHS: the packed weight, whose K blocks are columns of taps, brought into the same order for one block at a time.
//
//   for block of 4 panels, some rows of a plane of the result in tasks:    # in parallel
//       bring weights, scales and padding of the block into the order of registers
//       for rows of the result whose windows lie in the same K groups of rows of x:
//           for strip of the row:
//               pack the columns of the strip
//               for row of the result:                    # its weights are moved down within the K groups
//                   for tile of some registers of pixels: # accumulators stay in registers
//                       accumulators = zero point correction
//                       for column of taps, K group: load columns and weights, multiply, add
//                       epilogue: scale, bias, residual, requantize, store
//
// depthwise_tiles.h has the tiles for all windows. Where a CPU multiplies and adds four bytes exactly, windows of 3x3, 5x5 and
// 7x7 have tiles of their own, in depthwise_three_taps.h and depthwise_by_quarters.h.
#include "conv/cpu/loops/depthwise.h"

#include "conv/cpu/loops/deferred_lookup.h"
#include "conv/cpu/loops/depthwise_by_quarters.h"
#include "conv/cpu/loops/depthwise_columns.h"
#include "conv/cpu/loops/depthwise_three_taps.h"
#include "conv/cpu/loops/depthwise_tiles.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

// Computes `count` pixels of one row of the result, of which `pixel` is the first, from packed columns.
inline void compute_packed(const Block& b, const uint8_t* w, int64_t pixel, int64_t count) {
#if defined(__AVX512VNNI__)
  if (has_three_taps(b)) return compute_three(b, w, pixel, count);
  if (fits_quarter_tiles(b)) return compute_by_quarters(b, w, pixel, count);
#endif
  compute_row(b, b.packed_columns, w, pixel, count);
}

// Computes `count` pixels of `rows` rows of the result, which share a packing. `pixel` is the first one.
template <int V, bool kSigned>
void compute_strip(const Block& b, int64_t output, int64_t count, int64_t pixel, int64_t rows) {
#if defined(__AVX512VNNI__)
  if constexpr (V == kLanes) {
    if (can_slide(b)) return slide_rows<kSigned>(b, output, count, pixel, rows);
  }
#endif
  pack_columns<V, kSigned>(b, output, count);
  for (int64_t i = 0; i < rows; ++i) compute_packed(b, b.weights_of(i), pixel + i * b.s.out_width, count);
}

// Computes `rows` rows of a plane of the result from row `first` on, for V panels from `panel` on.
template <int V, bool kSigned>
void compute_panels(Block& b, int64_t plane, int64_t first, int64_t rows, int64_t panel, DeferredLookup& lookup) {
  const ConvShape& s = b.s;
  b.prepare<V, kSigned>(panel);
  for (int64_t done = 0; done < rows; done += b.shared_rows) {
    const int64_t row = first + done, together = rows - done < b.shared_rows ? rows - done : b.shared_rows;
    b.find_rows(plane, row);
    for (int64_t output = 0; output < s.out_width; output += b.columns->outputs) {
      const int64_t left = s.out_width - output, count = left < b.columns->outputs ? left : b.columns->outputs;
      const int64_t pixel = (plane * s.out_height + row) * s.out_width + output;
      compute_strip<V, kSigned>(b, output, count, pixel, together);
      if (b.a.table != nullptr) lookup.next(pixel, count, b.channel, b.left, together, s.out_width);
    }
  }
}

template <bool kSigned>
void for_each_task(const DepthwiseArgs& a, int64_t begin, int64_t end, uint8_t* scratch) {
  const int64_t row_tasks = a.row_tasks(), task_rows = a.task_rows(), blocks = a.blocks(), panels = a.shape.panels();
  const bool keeps_blocks = a.keeps_blocks();
  Block block(a, scratch);
  DeferredLookup lookup{a};
  for (int64_t i = begin; i < end; ++i) {
    const int64_t plane = i / (blocks * row_tasks), task = i % (blocks * row_tasks);
    const int64_t row = (keeps_blocks ? task % row_tasks : task / blocks) * task_rows;
    const int64_t rows = a.shape.out_height - row < task_rows ? a.shape.out_height - row : task_rows;
    const int64_t first = (keeps_blocks ? task / row_tasks : task % blocks) * kNBlockPanels;
    const int64_t last = first + kNBlockPanels < panels ? first + kNBlockPanels : panels;
    // As many panels at once as a register has lanes, then fewer. Three count as four.
    for (int64_t panel = first; panel < last;) {
      const int64_t left = last - panel;
      if (kLanes == 4 && left > 2) {
        compute_panels<kLanes == 4 ? 4 : 1, kSigned>(block, plane, row, rows, panel, lookup);
        panel += 4;
      } else if (kLanes >= 2 && left > 1) {
        compute_panels<kLanes >= 2 ? 2 : 1, kSigned>(block, plane, row, rows, panel, lookup);
        panel += 2;
      } else {
        compute_panels<1, kSigned>(block, plane, row, rows, panel, lookup);
        panel += 1;
      }
    }
  }
  lookup.finish();
}

}  // namespace

void depthwise_loop(const DepthwiseArgs& args, int64_t begin, int64_t end, uint8_t* scratch) {
  args.x_signed ? for_each_task<true>(args, begin, end, scratch) : for_each_task<false>(args, begin, end, scratch);
}

}  // namespace FXQ_ISA
}  // namespace fxquant
