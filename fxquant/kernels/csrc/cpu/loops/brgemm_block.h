// A block of a matrix product by the framework's kernels, and the packing of its LHS. No torch.
//
// LHS: unsigned bytes [rows][K], in chunks of kBrgemmK bytes of K: [chunks][rows][bytes of a chunk].
// RHS: an N block of a packed weight, [K / kKGroup][columns][kKGroup] signed bytes.
#pragma once
#include <cstdint>
#include <cstring>

#include "cpu/brgemm.h"
#include "cpu/loops/brgemm_sizes.h"
#include "cpu/loops/loop_pragmas.h"
#include "cpu/loops/products.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

// An LHS. As many rows are read as the next multiple of kBrgemmRowMultiple.
struct Lhs {
  const uint8_t* at;
  int64_t row_stride;  // in bytes
  int64_t chunk;       // bytes from a chunk of a row to the next
};

// Memory for an LHS that is packed: [chunks][rows][row_stride].
struct LhsBuffer {
  uint8_t* to;
  int64_t rows;
  int64_t row_stride;

  LhsBuffer(uint8_t* memory, int64_t room, int64_t k_size)
      : to(memory + (-reinterpret_cast<uintptr_t>(memory)) % kCacheLine),
        rows(room),
        row_stride(lhs_row_bytes(k_size)) {}

  Lhs operand(int64_t row) const { return {to + row * row_stride, row_stride, rows * row_stride}; }

  // Copies `bytes` bytes from each of `count` pointers to successive rows, from `row` on and from index k of K on. Each byte
  // is combined with `flip` by exclusive or.
  void copy(const uint8_t* const* from, int64_t shift, int64_t count, int64_t row, int64_t k, int64_t bytes,
            uint8_t flip) const {
    for (int64_t done = 0; done < bytes;) {
      const int64_t inside = (k + done) % kBrgemmK;
      int64_t part = bytes - done < kCopied ? bytes - done : kCopied;
      if (part > kBrgemmK - inside) part = kBrgemmK - inside;
      uint8_t* at = to + (k + done) / kBrgemmK * rows * row_stride + row * row_stride + inside;
      copy_column(from, shift + done, count, at, part, flip);
      done += part;
    }
  }

  // Copies one whole row, whose bytes are `step` apart.
  void copy_row(const uint8_t* from, int64_t step, int64_t row, int64_t bytes, uint8_t flip) const {
    if (step == 1) return copy(&from, 0, 1, row, 0, bytes, flip);
    for (int64_t k = 0; k < bytes; ++k) {
      to[k / kBrgemmK * rows * row_stride + row * row_stride + k % kBrgemmK] = from[k * step] ^ flip;
    }
  }

 private:
  static constexpr int64_t kCopied = 64;  // bytes of a row that are copied at once

  void copy_column(const uint8_t* const* from, int64_t shift, int64_t count, uint8_t* at, int64_t bytes,
                   uint8_t flip) const {
#if defined(__AVX512BW__)
    const __m512i flips = _mm512_set1_epi8(static_cast<char>(flip));
    const __mmask64 mask = bytes < kCopied ? (__mmask64{1} << bytes) - 1 : ~__mmask64{0};
    for (int64_t r = 0; r < count; ++r, at += row_stride) {
      _mm512_mask_storeu_epi8(at, mask, _mm512_xor_si512(_mm512_maskz_loadu_epi8(mask, from[r] + shift), flips));
    }
#else
    for (int64_t r = 0; r < count; ++r, at += row_stride) {
      const uint8_t* bytes_of = from[r] + shift;
      FXQ_INDEPENDENT
      for (int64_t i = 0; i < bytes; ++i) at[i] = bytes_of[i] ^ flip;
    }
#endif
  }
};

// Does what brgemm() does, for a framework that refuses.
inline void multiply_without_brgemm(int64_t rows, int64_t columns, int64_t k_size, const uint8_t* a, int64_t row_stride,
                             const int8_t* b, bool adds, int32_t* c) {
  const int32_t zeros[kPanel] = {};
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t panel = 0; panel < columns; panel += kPanel) {
      int32_t* to = c + r * columns + panel;
      Accumulators acc = init_accumulators(adds ? to : zeros, kPanel);
      for (int64_t k = 0; k < k_size; k += kKGroup) {
        add_products(acc, load_pixel<false>(a + r * row_stride + k), load_weights(b + k * columns + panel * kKGroup));
      }
      store_accumulators(acc, to);
    }
  }
}

// Computes c = a b for at most kBrgemmRows rows and kBrgemmColumns columns. c has room for as many rows as are read.
inline void multiply_block(int64_t rows, int64_t columns, int64_t k_size, const Lhs& a, const int8_t* b, int32_t* c) {
  const int64_t step = rows > kBrgemmRows - kBrgemmRowMultiple ? kBrgemmRows : kBrgemmRowMultiple;
  for (int64_t k = 0; k < k_size; k += kBrgemmK) {
    const int64_t part = k_size - k < kBrgemmK ? k_size - k : kBrgemmK;
    const uint8_t* from = a.at + k / kBrgemmK * a.chunk;
    for (int64_t r = 0; r < rows; r += step) {
      const uint8_t* x = from + r * a.row_stride;
      int32_t* to = c + r * columns;
      if (!brgemm(step, columns, part, x, a.row_stride, b + k * columns, k > 0, to)) {
        multiply_without_brgemm(step, columns, part, x, a.row_stride, b + k * columns, k > 0, to);
      }
    }
  }
}

}  // namespace
}  // namespace FXQ_ISA
}  // namespace fxquant
