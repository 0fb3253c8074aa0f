#include "matmul.h"

#include "blocks.h"
#include "interleave.h"
#include "tile.h"
#include "vector.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

constexpr int64_t kQuads = kPanel * kQuad;  // bytes of four rows of a panel

void copy_line(const uint8_t* from, int64_t step, int64_t count, uint8_t flip, uint8_t* FXQ_RESTRICT to) {
  if (step == 1) {
    for (int64_t k = 0; k < count; ++k) to[k] = from[k] ^ flip;
  } else {
    for (int64_t k = 0; k < count; ++k) to[k] = from[k * step] ^ flip;
  }
}

#if defined(__AVX2__)
// Four columns of 16 bytes, as four rows of quads.
void transpose(const uint8_t* from, int64_t line, uint8_t flip, uint8_t* to) {
  const __m128i flips = _mm_set1_epi8(static_cast<char>(flip));
  __m128i columns[4];
  for (int c = 0; c < 4; ++c) {
    columns[c] = _mm_xor_si128(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + c * line)), flips);
  }
  const __m128i low01 = _mm_unpacklo_epi32(columns[0], columns[1]);
  const __m128i low23 = _mm_unpacklo_epi32(columns[2], columns[3]);
  const __m128i high01 = _mm_unpackhi_epi32(columns[0], columns[1]);
  const __m128i high23 = _mm_unpackhi_epi32(columns[2], columns[3]);
  const auto store = [to](int q, __m128i quads) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + q * kQuads), quads);
  };
  store(0, _mm_unpacklo_epi64(low01, low23));
  store(1, _mm_unpackhi_epi64(low01, low23));
  store(2, _mm_unpacklo_epi64(high01, high23));
  store(3, _mm_unpackhi_epi64(high01, high23));
}
#else
void transpose(const uint8_t* from, int64_t line, uint8_t flip, uint8_t* to) {
  for (int64_t q = 0; q < 4; ++q) {
    for (int64_t c = 0; c < 4; ++c) copy_line(from + c * line + q * kQuad, 1, kQuad, flip, to + q * kQuads + c * kQuad);
  }
}
#endif

// Quads one by one: of rows from first to last, as many as there are, and of the columns from left to right.
void copy_quads(const PackArgs& a, const uint8_t* from, int64_t first, int64_t last, int64_t left, int64_t right,
                uint8_t* to) {
  for (int64_t c = left; c < right; ++c) {
    for (int64_t q = first; q < last; ++q) {
      const int64_t rest = a.depth - q * kQuad;
      const uint8_t* quad = from + c * a.line + q * kQuad * a.step;
      copy_line(quad, a.step, rest < kQuad ? rest : kQuad, a.flip, to + q * kQuads + c * kQuad);
    }
  }
}

// The bytes of 16 columns, or fewer; what is missing is 0.
void pack_panel(const PackArgs& a, const uint8_t* from, int64_t count, uint8_t* to) {
  int64_t done = 0;  // quads
  if (a.line == 1 && count == kPanel) {
    for (; (done + 1) * kQuad <= a.depth; ++done) {
      const uint8_t* row = from + done * kQuad * a.step;
      const uint8_t* const rows[kQuad] = {row, row + a.step, row + 2 * a.step, row + 3 * a.step};
      interleave(rows, a.flip, to + done * kQuads);
    }
  }
  const int64_t quads = a.padded() / kQuad;
  const bool is_partial = count < kPanel || a.depth < quads * kQuad;
  if (done < quads && is_partial) std::memset(to + done * kQuads, 0, (quads - done) * kQuads);
  for (; a.step == 1 && (done + 4) * kQuad <= a.depth; done += 4) {
    int64_t columns = 0;
    for (; columns + 4 <= count; columns += 4) {
      transpose(from + columns * a.line + done * kQuad, a.line, a.flip, to + done * kQuads + columns * kQuad);
    }
    copy_quads(a, from, done, done + 4, columns, count, to);
  }
  copy_quads(a, from, done, quads, 0, count, to);
}

void sum_columns(const PackArgs& a, const uint8_t* panel, int32_t* columns) {
  const uint8_t ones[kQuad] = {1, 1, 1, 1};
  const Pixel one = load_pixel<false>(ones);
  Sums sums;
  for (int64_t q = 0; q < a.padded() / kQuad; ++q) {
    add_products(sums, one, load_weights(reinterpret_cast<const int8_t*>(panel) + q * kQuads));
  }
  int32_t each[kPanel];
  store_total(sums, each);
  // Modulo 2^32: only the sum of all parts is known to fit.
  for (int64_t c = 0; c < kPanel; ++c) {
    columns[c] = static_cast<int32_t>(static_cast<uint32_t>(a.start) +
                                      static_cast<uint32_t>(each[c]) * static_cast<uint32_t>(a.factor));
  }
}

uint32_t sum_of(const uint8_t* row, int64_t count) {
#if defined(__AVX512BW__)
  __m512i sums = _mm512_setzero_si512();
  for (int64_t k = 0; k < count; k += 64) {
    const __mmask64 mask = count - k >= 64 ? ~__mmask64{0} : (__mmask64{1} << (count - k)) - 1;
    sums = _mm512_add_epi64(sums, _mm512_sad_epu8(_mm512_maskz_loadu_epi8(mask, row + k), _mm512_setzero_si512()));
  }
  return static_cast<uint32_t>(_mm512_reduce_add_epi64(sums));
#else
  uint32_t sum = 0;
  for (int64_t k = 0; k < count; ++k) sum += row[k];
  return sum;
#endif
}

#if defined(__AVX512BW__)
// From the sums of 16 columns to the result.
struct Epilogue {
  const MatmulArgs& a;
  const __m512 scale = _mm512_set1_ps(a.scale);
  const __m512 inv_scale = _mm512_set1_ps(a.grid.inv_scale);
  const __m512 low = _mm512_set1_ps(a.grid.low);
  const __m512 high = _mm512_set1_ps(a.grid.high);
  const __m512 shift = _mm512_set1_ps(kRoundingShift);
  const __m512i zero_point = _mm512_set1_epi32(a.grid.zero_point);

  explicit Epilogue(const MatmulArgs& args) : a(args) {}

  // What requantize() of math/requantize.h does; max and min give their second operand for NaN, as its clamps do.
  FXQ_INLINE void store(const Sums& sums, int32_t row, int64_t at, int64_t left) const {
    const __mmask16 mask = static_cast<__mmask16>(left >= kPanel ? 0xffff : (1 << left) - 1);
    const __m512i sum = _mm512_add_epi32(total(sums), _mm512_set1_epi32(row));
    const __m512 real = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), scale);
    if (a.y_float != nullptr) {
      _mm512_mask_storeu_ps(a.y_float + at, mask, real);
      return;
    }
    const __m512 steps = _mm512_min_ps(_mm512_max_ps(_mm512_mul_ps(real, inv_scale), low), high);
    const __m512i bits = _mm512_castps_si512(_mm512_add_ps(steps, shift));
    _mm_mask_storeu_epi8(a.y + at, mask, _mm512_cvtepi32_epi8(_mm512_add_epi32(bits, zero_point)));
  }
};
#else
struct Epilogue {
  const MatmulArgs& a;

  explicit Epilogue(const MatmulArgs& args) : a(args) {}

  void store(const Sums& of, int32_t row, int64_t at, int64_t left) const {
    int32_t sums[kPanel];
    total(of, sums);
    float real[kPanel];
    for (int64_t c = 0; c < kPanel; ++c) {
      const uint32_t sum = static_cast<uint32_t>(sums[c]) + static_cast<uint32_t>(row);  // modulo 2^32: the whole fits
      real[c] = static_cast<float>(static_cast<int32_t>(sum)) * a.scale;
    }
    const int64_t count = left < kPanel ? left : kPanel;
    if (a.y_float != nullptr) {
      std::memcpy(a.y_float + at, real, count * sizeof(float));
      return;
    }
    uint8_t bytes[kPanel];
    FXQ_INDEPENDENT
    for (int64_t c = 0; c < kPanel; ++c) bytes[c] = requantize(real[c], a.grid);
    std::memcpy(a.y + at, bytes, count);
  }
};
#endif

// Where a tile takes its operands from, and where it goes.
struct Place {
  const uint8_t* const* rows;  // and kBlockRows after each: less than four bytes of it, and zeros
  const int32_t* row_sums;
  const int8_t* panel;
  const int32_t* columns;
  int64_t at;    // of its first element in y
  int64_t left;  // columns of y from there on
};

template <int V, int v = 0>
FXQ_INLINE void store_row(const Epilogue& epilogue, const Sums* sums, int32_t row, int64_t at, int64_t left) {
  epilogue.store(sums[v], row, at + v * kPanel, left - v * kPanel);
  if constexpr (v + 1 < V) store_row<V, v + 1>(epilogue, sums, row, at, left);
}

template <int R, int V, int r = 0>
FXQ_INLINE void store_rows(const Epilogue& epilogue, const Sums (*sums)[V], const Place& place) {
  store_row<V>(epilogue, sums[r], place.row_sums[r], place.at + r * epilogue.a.columns, place.left);
  if constexpr (r + 1 < R) store_rows<R, V, r + 1>(epilogue, sums, place);
}

// R rows and V times 16 columns.
template <int R, int V>
void tile(const MatmulArgs& a, const Place& place) {
  const int64_t panel = a.quads() * kQuads;
  Sums starts[V];
  load_starts<V>(starts, place.columns, V * kPanel);
  Sums sums[R][V];
  start_rows<R, V>(sums, starts);
  const int8_t* w = place.panel;
  const int64_t whole = a.depth / kQuad;
  for (int part = 0; part < 2; ++part) {  // rows, then what is left of them
    const uint8_t* x[R];
    FXQ_UNROLL
    for (int r = 0; r < R; ++r) x[r] = place.rows[part * kBlockRows + r];
    const int64_t quads = part == 0 ? whole : a.quads() - whole;
    Weights weights[V];
    for (int64_t k = 0; k < quads; ++k, w += kQuads) {
      load_panels<V>(weights, w, panel);
      add_pixels<R, V, false>(sums, x, k * kQuad, weights);
    }
  }
  store_rows<R, V>(Epilogue(a), sums, place);
}

using Tile = void (*)(const MatmulArgs&, const Place&);

template <int R, int V>
Tile find_rows(int64_t rows) {
  if constexpr (R > 1) {
    if (rows < R) return find_rows<R - 1, V>(rows);
  }
  return tile<R, V>;
}

// The tile of V vectors or fewer, and of as many rows as their sums fit into registers, or fewer.
template <int V>
Tile find_tile(int64_t rows, int64_t vectors) {
  if constexpr (V > 1) {
    if (vectors < V) return find_tile<V - 1>(rows, vectors);
  }
  return find_rows<rows_of_tile(V), V>(rows);
}

}  // namespace

void pack_rows_loop(const PackArgs& args, int64_t begin, int64_t end) {
  const int64_t padded = args.padded();
  for (int64_t i = begin; i < end; ++i) {
    const uint8_t* from = args.from + place_of(args.matrices, i / args.lines) + i % args.lines * args.line;
    uint8_t* to = args.to + i * padded;
    copy_line(from, args.step, args.depth, args.flip, to);
    for (int64_t k = args.depth; k < padded; ++k) to[k] = 0;
  }
}

void pack_panels_loop(const PackArgs& args, int64_t begin, int64_t end) {
  const int64_t panels = args.panels();
  for (int64_t i = begin; i < end; ++i) {
    const int64_t first = i % panels * kPanel;
    const uint8_t* from = args.from + place_of(args.matrices, i / panels) + first * args.line;
    uint8_t* to = args.to + i * kPanel * args.padded();
    const int64_t left = args.lines - first;
    pack_panel(args, from, left < kPanel ? left : kPanel, to);
    sum_columns(args, to, args.columns + i * kPanel);
  }
}

void matmul_loop(const MatmulArgs& a, int64_t begin, int64_t end) {
  const int64_t panels = a.panels();
  const int64_t panel = a.quads() * kQuads;
  const int64_t row_blocks = a.row_blocks();
  const int64_t column_blocks = a.column_blocks();
  const int64_t block_rows = a.block_rows();
  const int64_t whole = a.depth / kQuad * kQuad;
  const uint8_t* rows[2 * kBlockRows];
  uint8_t rests[kBlockRows][kQuad] = {};
  int32_t row_sums[kBlockRows];
  for (int64_t i = begin; i < end; ++i) {
    const int64_t block = i / column_blocks;
    const int64_t batch = block / row_blocks;
    const int64_t first = block % row_blocks * block_rows;
    const int64_t count = a.rows - first < block_rows ? a.rows - first : block_rows;
    const uint8_t* row = a.a + place_of(a.a_matrices, batch) + first * a.line;
    for (int64_t r = 0; r < count; ++r, row += a.line) {
      rows[r] = row;
      rows[kBlockRows + r] = rests[r];
      for (int64_t k = whole; k < a.depth; ++k) rests[r][k - whole] = row[k];
      const uint32_t sum = a.row_factor == 0 ? 0 : sum_of(row, a.depth);
      row_sums[r] = static_cast<int32_t>(sum * static_cast<uint32_t>(a.row_factor));
    }
    const int64_t before = place_of(a.b_matrices, batch) * panels;
    const int64_t begin_panel = i % column_blocks * kTaskPanels;
    const int64_t end_panel = begin_panel + kTaskPanels < panels ? begin_panel + kTaskPanels : panels;
    for (int64_t p = begin_panel; p < end_panel; p += kVectors) {
      const int64_t vectors = end_panel - p;
      const int64_t step = rows_of_tile(vectors < kVectors ? vectors : kVectors);
      for (int64_t r = 0; r < count; r += step) {
        const Place place{rows + r,
                          row_sums + r,
                          a.b + (before + p) * panel,
                          a.column_sums + (before + p) * kPanel,
                          (batch * a.rows + first + r) * a.columns + p * kPanel,
                          a.columns - p * kPanel};
        find_tile<kVectors>(count - r, vectors)(a, place);
      }
    }
  }
}

}  // namespace FXQ_ISA
}  // namespace fxquant
