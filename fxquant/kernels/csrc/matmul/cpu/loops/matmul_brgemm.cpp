// int8 product of two activations by the framework's kernels, which use tile registers (AMX).
//
// LHS: a strip of kBrgemmRows rows of a. They are packed, unless a has them in the wanted form.
// RHS: b, packed to N blocks [K / kKGroup][columns][kKGroup] by pack_panels_loop of matmul.cpp.
//
//   for matrix, strip, N block in tasks:  # in parallel
//       pack the LHS, sum its rows        # once for all N blocks of the strip
//       accumulators = LHS * RHS          # multiply_block() of brgemm_block.h
//       epilogue: column and row terms (see matmul.cpp), scale, requantize, store
#include "matmul/cpu/loops/matmul_brgemm.h"

#include "cpu/loops/brgemm_block.h"
#include "matmul/cpu/loops/matmul_epilogue.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

// The tasks of one thread, and its memory.
struct MatmulTask {
  const BrgemmMatmulArgs& a;
  const Epilogue epilogue;
  LhsBuffer lhs_buffer;
  Lhs x{};
  int32_t row_sums[kBrgemmRows];
  alignas(64) int32_t acc[kBrgemmRows * kBrgemmColumns];

  MatmulTask(const BrgemmMatmulArgs& args, uint8_t* scratch)
      : a(args), epilogue(args), lhs_buffer(scratch, kBrgemmRows, args.padded) {}

  // Finds the LHS of `count` rows of a, and computes their terms.
  void pack_lhs(const uint8_t* from, int64_t count) {
    const bool as_they_are = a.flip == 0 && a.k_stride == 1 && a.k_size == a.padded && count % kBrgemmRowMultiple == 0;
    if (as_they_are) {
      x = {from, a.row_stride, kBrgemmK};
    } else {
      for (int64_t r = 0; r < count; ++r) lhs_buffer.copy_row(from + r * a.row_stride, a.k_stride, r, a.k_size, a.flip);
      x = lhs_buffer.operand(0);
    }
    for (int64_t r = 0; r < count; ++r) {
      uint32_t sum = 0;
      for (int64_t k = 0; a.row_factor != 0 && k < a.k_size; k += kBrgemmK) {
        const int64_t part = a.k_size - k < kBrgemmK ? a.k_size - k : kBrgemmK;
        sum += sum_of(x.at + r * x.row_stride + k / kBrgemmK * x.chunk, part);
      }
      row_sums[r] = static_cast<int32_t>(sum * static_cast<uint32_t>(a.row_factor));
    }
  }

  // Multiplies the LHS with one N block, and stores the result.
  void block(int64_t batch, int64_t row, int64_t count, int64_t number) {
    const int64_t first = a.first_panel(number), width = a.first_panel(number + 1) - first;
    const int64_t before = place_of(a.b_matrices, batch) * a.panels() + first;
    multiply_block(count, width * kPanel, a.padded, x, a.b + before * kPanel * a.padded, acc);
    const Epilogue end(epilogue);
    for (int64_t r = 0; r < count; ++r) {
      const int64_t at = (batch * a.rows + row + r) * a.columns + first * kPanel;
      for (int64_t v = 0; v < width; ++v) {
        const Accumulators each =
            accumulators_of_sum(acc + (r * width + v) * kPanel, a.column_sums + (before + v) * kPanel);
        end.store<1>(&each, row_sums[r], at + v * kPanel, a.columns - (first + v) * kPanel);
      }
    }
  }

  void run(int64_t begin, int64_t end) {
    const int64_t strips = a.strips(), blocks = a.n_blocks();
    int64_t found = -1;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t strip = i / blocks, batch = strip / strips;
      const int64_t row = strip % strips * kBrgemmRows;
      const int64_t count = a.rows - row < kBrgemmRows ? a.rows - row : kBrgemmRows;
      if (strip != found) pack_lhs(a.a + place_of(a.a_matrices, batch) + row * a.row_stride, count);
      found = strip;
      block(batch, row, count, i % blocks);
    }
  }
};

}  // namespace

void matmul_brgemm_loop(const BrgemmMatmulArgs& args, int64_t begin, int64_t end, uint8_t* scratch) {
  MatmulTask(args, scratch).run(begin, end);
  brgemm_release();
}

}  // namespace FXQ_ISA
}  // namespace fxquant
