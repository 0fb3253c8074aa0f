// int8 product of two activations, a [M, K] and b [K, N], for each matrix of a batch.
//
// LHS: the rows of a, unsigned bytes with K innermost. Rows that are not so are packed to [M][padded K] first.
// RHS: b is packed to [K groups][kPanel columns][kKGroup bytes], panel by panel (to N blocks of panels for the framework's
// kernels, see matmul_brgemm.cpp). Its bytes become signed.
//
// sum (a - za) (b - zb) = sum a b - zb * row sums of a - za * column sums of b + K za zb. The terms of a column are the
// initial accumulators of that column, and the term of a row is added in the epilogue.
//
//   for matrix, panel of b in tasks:                      # in parallel: pack_panels_loop
//       pack the panel, sum its columns
//   for matrix, row block, column block in tasks:         # in parallel: matmul_loop
//       sum the rows
//       for V panels of the column block:
//           for R rows of the row block:                  # tile(): R * V registers hold accumulators
//               accumulators = column terms
//               for K group:
//                   load V registers of b
//                   for each of R rows: broadcast kKGroup bytes, multiply, add
//               epilogue: row term, scale, requantize, store
#include "matmul/cpu/loops/matmul.h"

#include "cpu/loops/blocks.h"
#include "cpu/loops/interleave.h"
#include "cpu/loops/tile.h"
#include "matmul/cpu/loops/matmul_epilogue.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

// Copies `count` bytes that are `step` apart to neighbouring ones.
void copy_vector(const uint8_t* from, int64_t step, int64_t count, uint8_t flip, uint8_t* FXQ_RESTRICT to) {
  if (step == 1) {
    for (int64_t k = 0; k < count; ++k) to[k] = from[k] ^ flip;
  } else {
    for (int64_t k = 0; k < count; ++k) to[k] = from[k * step] ^ flip;
  }
}

#if defined(__AVX2__)
// Packs 16 bytes of four columns: four K groups of each, of which successive ones lie `row` bytes apart.
void transpose(const uint8_t* from, int64_t outer_stride, uint8_t flip, int64_t row, uint8_t* to) {
  const __m128i flips = _mm_set1_epi8(static_cast<char>(flip));
  __m128i columns[4];
  for (int c = 0; c < 4; ++c) {
    columns[c] = _mm_xor_si128(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + c * outer_stride)), flips);
  }
  const __m128i low01 = _mm_unpacklo_epi32(columns[0], columns[1]);
  const __m128i low23 = _mm_unpacklo_epi32(columns[2], columns[3]);
  const __m128i high01 = _mm_unpackhi_epi32(columns[0], columns[1]);
  const __m128i high23 = _mm_unpackhi_epi32(columns[2], columns[3]);
  const auto store = [to, row](int q, __m128i k_groups) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + q * row), k_groups);
  };
  store(0, _mm_unpacklo_epi64(low01, low23));
  store(1, _mm_unpackhi_epi64(low01, low23));
  store(2, _mm_unpacklo_epi64(high01, high23));
  store(3, _mm_unpackhi_epi64(high01, high23));
}
#elif defined(__ARM_FEATURE_DOTPROD)
void transpose(const uint8_t* from, int64_t outer_stride, uint8_t flip, int64_t row, uint8_t* to) {
  const uint8x16_t flips = vdupq_n_u8(flip);
  const auto column = [&](int c) { return vreinterpretq_u32_u8(veorq_u8(vld1q_u8(from + c * outer_stride), flips)); };
  const uint32x4x2_t first = vzipq_u32(column(0), column(1)), second = vzipq_u32(column(2), column(3));
  FXQ_UNROLL
  for (int q = 0; q < 4; ++q) {
    const uint32x2_t left = q % 2 ? vget_high_u32(first.val[q / 2]) : vget_low_u32(first.val[q / 2]);
    const uint32x2_t right = q % 2 ? vget_high_u32(second.val[q / 2]) : vget_low_u32(second.val[q / 2]);
    vst1q_u8(to + q * row, vreinterpretq_u8_u32(vcombine_u32(left, right)));
  }
}
#else
void transpose(const uint8_t* from, int64_t outer_stride, uint8_t flip, int64_t row, uint8_t* to) {
  for (int64_t q = 0; q < 4; ++q) {
    for (int64_t c = 0; c < 4; ++c)
      copy_vector(from + c * outer_stride + q * kKGroup, 1, kKGroup, flip, to + q * row + c * kKGroup);
  }
}
#endif

// Packs the K groups first <= k < last of the columns left <= c < right, one by one. The last may have fewer bytes.
void copy_k_groups(const PackArgs& a, const uint8_t* from, int64_t first, int64_t last, int64_t left, int64_t right,
                int64_t row, uint8_t* to) {
  for (int64_t c = left; c < right; ++c) {
    for (int64_t q = first; q < last; ++q) {
      const int64_t rest = a.k_size - q * kKGroup;
      const uint8_t* k_group = from + c * a.outer_stride + q * kKGroup * a.k_stride;
      copy_vector(k_group, a.k_stride, rest < kKGroup ? rest : kKGroup, a.flip, to + q * row + c * kKGroup);
    }
  }
}

// Packs a panel: `count` columns, at most kPanel. Successive K groups lie `row` bytes apart. Missing bytes are 0.
void pack_panel(const PackArgs& a, const uint8_t* from, int64_t count, int64_t row, uint8_t* to) {
  int64_t done = 0;  // K groups that are packed
  // Columns that lie side by side: interleave four rows of them.
  if (a.outer_stride == 1 && count == kPanel) {
    for (; (done + 1) * kKGroup <= a.k_size; ++done) {
      const uint8_t* first = from + done * kKGroup * a.k_stride;
      const uint8_t* const rows[kKGroup] = {first, first + a.k_stride, first + 2 * a.k_stride, first + 3 * a.k_stride};
      interleave(rows, a.flip, to + done * row);
    }
  }
  // Zeros for columns and bytes that do not exist.
  const int64_t k_groups = a.k_groups();
  if (count < kPanel || a.k_size < a.padded) {
    for (int64_t q = done; q < k_groups; ++q) std::memset(to + q * row, 0, kPanelGroupBytes);
  }
  // Rows that lie side by side: transpose four columns at a time.
  for (; a.k_stride == 1 && (done + 4) * kKGroup <= a.k_size; done += 4) {
    int64_t columns = 0;
    for (; columns + 4 <= count; columns += 4) {
      const uint8_t* corner = from + columns * a.outer_stride + done * kKGroup;
      transpose(corner, a.outer_stride, a.flip, row, to + done * row + columns * kKGroup);
    }
    copy_k_groups(a, from, done, done + 4, columns, count, row, to);
  }
  // All other strides, and the last K group.
  copy_k_groups(a, from, done, (a.k_size + kKGroup - 1) / kKGroup, 0, count, row, to);
}

// Computes the initial accumulators of a panel from the sums of its columns.
void sum_columns(const PackArgs& a, const uint8_t* panel, int64_t row, int32_t* columns) {
  // Computed modulo 2^32: the parts may overflow, the sum of all of them does not.
  for (int64_t c = 0; c < kPanel; ++c) columns[c] = static_cast<int32_t>(static_cast<uint32_t>(a.constant_term));
  const int32_t factor = static_cast<int32_t>(static_cast<uint32_t>(a.factor));
  add_weight_sums(reinterpret_cast<const int8_t*>(panel), a.k_groups(), row, factor, columns);
}

// The operands of a tile, and where its result goes.
struct TileOperands {
  const uint8_t* const* rows;  // and kBlockRows further on, for each: its last K group, if that has fewer bytes
  const int32_t* row_sums;
  const int8_t* panel;
  const int32_t* columns;
  int64_t at;    // index of its first element in y
  int64_t left;  // columns of y from there on
};

// Finishes a tile of R rows.
template <int R, int V, int r = 0>
FXQ_INLINE void store_rows(const Epilogue& epilogue, const Accumulators (*acc)[V], const TileOperands& operands) {
  epilogue.store<V>(acc[r], operands.row_sums[r], operands.at + r * epilogue.columns(), operands.left);
  if constexpr (r + 1 < R) store_rows<R, V, r + 1>(epilogue, acc, operands);
}

// Computes a tile of R rows times V panels.
template <int R, int V>
void tile(const MatmulArgs& a, const TileOperands& operands) {
  const int64_t panel = a.k_groups() * kPanelGroupBytes;
  // Start at the terms of the columns.
  Accumulators initial[V];
  load_initial<V>(initial, operands.columns, V * kPanel);
  Accumulators acc[R][V];
  init_rows<R, V>(acc, initial);
  const int8_t* w = operands.panel;
  const int64_t whole = a.k_size / kKGroup;
  // Add the products of all K groups of kKGroup bytes, then of the last one, if it has fewer.
  for (int part = 0; part < 2; ++part) {
    const uint8_t* x[R];
    FXQ_UNROLL
    for (int r = 0; r < R; ++r) x[r] = operands.rows[part * kBlockRows + r];
    const int64_t k_groups = part == 0 ? whole : a.k_groups() - whole;
    Weights weights[V];
    for (int64_t k = 0; k < k_groups; ++k, w += kPanelGroupBytes) {
      load_panels<V>(weights, w, panel);
      add_pixels<R, V, false>(acc, x, k * kKGroup, weights);
    }
  }
  store_rows<R, V>(Epilogue(a), acc, operands);
}

using Tile = void (*)(const MatmulArgs&, const TileOperands&);

template <int R, int V>
Tile find_rows(int64_t rows) {
  if constexpr (R > 1) {
    if (rows < R) return find_rows<R - 1, V>(rows);
  }
  return tile<R, V>;
}

// Returns the tile of V panels or fewer, and of as many rows as fit the registers, or fewer.
template <int V>
Tile find_tile(int64_t rows, int64_t panels_left) {
  if constexpr (V > 1) {
    if (panels_left < V) return find_tile<V - 1>(rows, panels_left);
  }
  return find_rows<rows_of_tile(V), V>(rows);
}

}  // namespace

void pack_rows_loop(const PackArgs& args, int64_t begin, int64_t end) {
  const int64_t padded = args.padded;
  for (int64_t i = begin; i < end; ++i) {
    const uint8_t* matrix = args.from + place_of(args.matrices, i / args.outer_size);
    const uint8_t* from = matrix + i % args.outer_size * args.outer_stride;
    uint8_t* to = args.to + i * padded;
    copy_vector(from, args.k_stride, args.k_size, args.flip, to);
    for (int64_t k = args.k_size; k < padded; ++k) to[k] = 0;
  }
}

void pack_panels_loop(const PackArgs& args, int64_t begin, int64_t end) {
  const int64_t panels = args.panels();
  for (int64_t i = begin; i < end; ++i) {
    const int64_t matrix = i / panels, panel = i % panels;
    const int64_t block = ((panel + 1) * args.n_blocks() - 1) / panels;
    const int64_t first = args.first_panel(block), width = args.first_panel(block + 1) - first;
    const uint8_t* from = args.from + place_of(args.matrices, matrix) + panel * kPanel * args.outer_stride;
    uint8_t* to = args.to + (matrix * panels + first) * kPanel * args.padded + (panel - first) * kPanelGroupBytes;
    const int64_t left = args.outer_size - panel * kPanel;
    pack_panel(args, from, left < kPanel ? left : kPanel, width * kPanelGroupBytes, to);
    sum_columns(args, to, width * kPanelGroupBytes, args.columns + i * kPanel);
  }
}

void matmul_loop(const MatmulArgs& a, int64_t begin, int64_t end) {
  const int64_t panels = a.panels();
  const int64_t panel = a.k_groups() * kPanelGroupBytes;
  const int64_t row_blocks = a.row_blocks();
  const int64_t column_blocks = a.column_blocks();
  const int64_t block_rows = a.block_rows();
  const int64_t whole = a.k_size / kKGroup * kKGroup;
  const uint8_t* rows[2 * kBlockRows];
  uint8_t tails[kBlockRows][kKGroup] = {};
  int32_t row_sums[kBlockRows];
  for (int64_t i = begin; i < end; ++i) {
    // Which rows of which matrix the task has.
    const int64_t block = i / column_blocks;
    const int64_t batch = block / row_blocks;
    const int64_t first = block % row_blocks * block_rows;
    const int64_t count = a.rows - first < block_rows ? a.rows - first : block_rows;
    const uint8_t* row = a.a + place_of(a.a_matrices, batch) + first * a.row_stride;
    // Find the rows and their last K groups, and compute the terms of the rows.
    for (int64_t r = 0; r < count; ++r, row += a.row_stride) {
      rows[r] = row;
      rows[kBlockRows + r] = tails[r];
      for (int64_t k = whole; k < a.k_size; ++k) tails[r][k - whole] = row[k];
      const uint32_t sum = a.row_factor == 0 ? 0 : sum_of(row, a.k_size);
      row_sums[r] = static_cast<int32_t>(sum * static_cast<uint32_t>(a.row_factor));
    }
    // Cover the row block and the column block by tiles.
    const int64_t before = place_of(a.b_matrices, batch) * panels;
    const int64_t begin_panel = i % column_blocks * kTaskPanels;
    const int64_t end_panel = begin_panel + kTaskPanels < panels ? begin_panel + kTaskPanels : panels;
    for (int64_t p = begin_panel; p < end_panel; p += kMostPanels) {
      const int64_t panels_left = end_panel - p;
      const int64_t step = rows_of_tile(panels_left < kMostPanels ? panels_left : kMostPanels);
      for (int64_t r = 0; r < count; r += step) {
        const TileOperands operands{rows + r,
                          row_sums + r,
                          a.b + (before + p) * panel,
                          a.column_sums + (before + p) * kPanel,
                          (batch * a.rows + first + r) * a.columns + p * kPanel,
                          a.columns - p * kPanel};
        find_tile<kMostPanels>(count - r, panels_left)(a, operands);
      }
    }
  }
}

}  // namespace FXQ_ISA
}  // namespace fxquant
