// int8 product of two activations on tile registers (AMX).
//
// LHS: a strip of kTileStripRows rows of a, as they are where K is innermost and fills whole tiles; else packed to unsigned
// rows.
// RHS: b, packed to N blocks [K / kKGroup][panels][16][kKGroup] by pack_panels_loop of matmul.cpp.
//
//   for matrix, strip, N block in tasks:     # in parallel
//       pack the LHS, sum its rows           # once for all N blocks of the strip
//       for two panels of the N block:
//           for two tiles of 16 rows:
//               accumulators = LHS * RHS     # 2 x 2 tiles, tile_block.h
//               epilogue: column and row terms (see matmul.cpp), scale, requantize, store
#include "matmul/cpu/loops/matmul_tiles.h"

#include "cpu/loops/tile_block.h"
#include "matmul/cpu/loops/matmul_epilogue.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

constexpr int64_t kOffsets[] = {0};  // K is one K block

// The tasks of one thread, and its memory.
class TileMatmulTask {
 public:
  TileMatmulTask(const TileMatmulArgs& args, uint8_t* scratch)
      : a_(args),
        epilogue_(args),
        copy_(args.in_place ? nullptr : scratch + (-reinterpret_cast<uintptr_t>(scratch)) % kCacheLine),
        row_stride_(args.in_place ? args.row_stride : args.padded),
        block_(KSteps::of(args.padded / kKGroup), args.tile_rows(), kOffsets, 1, row_stride_) {}

  template <bool kSigned>
  void run(int64_t begin, int64_t end) {
    const int64_t strips = a_.strips(), blocks = a_.n_blocks();
    int64_t found = -1;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t strip = i / blocks, batch = strip / strips;
      first_ = strip % strips * kTileStripRows;
      count_ = a_.rows - first_ < kTileStripRows ? a_.rows - first_ : kTileStripRows;
      if (strip != found) read<kSigned>(a_.a + place_of(a_.a_matrices, batch) + first_ * a_.row_stride);
      found = strip;
      n_block<kSigned>(batch, i % blocks);
    }
    block_.release();
  }

 private:
  const TileMatmulArgs& a_;
  const Epilogue epilogue_;
  uint8_t* const copy_;
  const int64_t row_stride_;
  TileBlock block_;
  int64_t first_ = 0, count_ = 0;  // rows of the strip
  const uint8_t* x_ = nullptr;     // its first row
  int32_t row_terms_[kTileStripRows];
  alignas(64) int32_t acc_[kTileBlockRows * 2 * kPanel];

  // Finds the rows of the strip, whose first begins at `from`, and computes their terms.
  template <bool kSigned>
  void read(const uint8_t* from) {
    x_ = a_.in_place ? from : copy_;
    if (!a_.in_place) pack(from);
    for (int64_t r = 0; r < count_; ++r) {
      uint32_t sum = 0;
      if (a_.row_factor != 0) {
        const uint8_t* row = x_ + r * row_stride_;
        sum = kSigned ? signed_sum_of(row, a_.k_size) : sum_of(row, a_.k_size);
      }
      row_terms_[r] = static_cast<int32_t>(sum * static_cast<uint32_t>(a_.row_factor));
    }
  }

  // The bytes from k_size to `padded` are multiplied with zeros.
  void pack(const uint8_t* from) const {
    const uint8_t flip = a_.a_signed ? 0x80 : 0;
    for (int64_t r = 0; r < count_; ++r) {
      const uint8_t* row = from + r * a_.row_stride;
      uint8_t* to = copy_ + r * a_.padded;
      if (a_.k_stride == 1) {
        FXQ_INDEPENDENT
        for (int64_t k = 0; k < a_.k_size; ++k) to[k] = row[k] ^ flip;
      } else {
        for (int64_t k = 0; k < a_.k_size; ++k) to[k] = row[k * a_.k_stride] ^ flip;
      }
    }
  }

  // Multiplies the strip with one N block, and stores the result.
  template <bool kSigned>
  void n_block(int64_t batch, int64_t number) {
    const int64_t first = a_.first_panel(number), width = a_.first_panel(number + 1) - first;
    const int64_t before = place_of(a_.b_matrices, batch) * a_.panels() + first;
    const int8_t* weight = a_.b + before * kPanel * a_.padded;
    const int64_t step = a_.tile_rows();
    for (int64_t v = 0; v < width; v += 2) {
      const int64_t panels = width - v < 2 ? 1 : 2;
      for (int64_t r = 0; r < count_; r += 2 * step) {
        const int64_t one = begin_of(r), other = begin_of(r + step);
        block_.template multiply<kSigned>(x_ + one * row_stride_, r + step < count_ ? x_ + other * row_stride_ : nullptr,
                                          weight + v * kPanelGroupBytes, width, panels, acc_);
        const int64_t column = (first + v) * kPanel;
        finish(batch, one, r, column, before + v, panels, acc_);
        if (r + step < count_) finish(batch, other, r + step, column, before + v, panels, acc_ + kTileRows * panels * kPanel);
      }
    }
  }

  // Where the tile of the rows from r on begins: the matrix may end behind its last row.
  int64_t begin_of(int64_t r) const {
    const int64_t last = (a_.in_place ? a_.rows - first_ : kTileStripRows) - a_.tile_rows();
    return r < last ? r : last;
  }

  // Runs the epilogue of a tile that begins at row `begin` of the strip. Rows before r belong to the tile before.
  void finish(int64_t batch, int64_t begin, int64_t r, int64_t column, int64_t panel, int64_t panels,
              const int32_t* acc) const {
    const Epilogue ending(epilogue_);
    const int64_t end = r + a_.tile_rows() < count_ ? r + a_.tile_rows() : count_;
    for (; r < end; ++r) {
      const int64_t at = (batch * a_.rows + first_ + r) * a_.columns + column;
      for (int64_t v = 0; v < panels; ++v) {
        const Accumulators each = accumulators_of_sum(acc + ((r - begin) * panels + v) * kPanel,
                                                      a_.column_sums + (panel + v) * kPanel);
        ending.store<1>(&each, row_terms_[r], at + v * kPanel, a_.columns - column - v * kPanel);
      }
    }
  }
};

}  // namespace

void matmul_tiles_loop(const TileMatmulArgs& args, int64_t begin, int64_t end, uint8_t* scratch) {
  TileMatmulTask task(args, scratch);
  args.a_signed && args.in_place ? task.run<true>(begin, end) : task.run<false>(begin, end);
}

}  // namespace FXQ_ISA
}  // namespace fxquant
