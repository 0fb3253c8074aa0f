#pragma once
#include "conv/conv_shape.h"
#include "cpu/dot_products.h"
#include "math/requantize.h"
#include "matmul/batches.h"

namespace fxquant {

constexpr int64_t kBlockRows = 60;   // rows of a task at most
constexpr int64_t kTaskPanels = 16;  // panels of a task at most

// Packing of a or of b. The outer dimension is M of a, and N of b.
struct PackArgs {
  const uint8_t* from;
  uint8_t flip;      // 0x80 between int8 and uint8, else 0
  Batches matrices;  // each once
  int64_t outer_stride;
  int64_t k_stride;
  int64_t outer_size;
  int64_t k_size;
  int64_t padded;         // K, with the zeros that are multiplied too
  int64_t together;       // b alone: panels of an N block at most
  int64_t constant_term;  // b alone: initial accumulator of a column = constant_term + factor * sum of its bytes
  int64_t factor;
  uint8_t* to;       // a: [matrices][M][padded]; b: [matrices][N blocks][K groups][panels of the N block][16][4]
  int32_t* columns;  // b alone: initial accumulators, [matrices][panels][16]

  template <typename Visitor>
  void pointers(Visitor& visit) const {
    visit.tensor(from);
    visit.tensor(to);
    visit.tensor(columns);
  }

  FXQ_INLINE int64_t k_groups() const { return padded / kKGroup; }
  FXQ_INLINE int64_t panels() const { return (outer_size + kPanel - 1) / kPanel; }
  FXQ_INLINE int64_t n_blocks() const { return (panels() + together - 1) / together; }
  FXQ_INLINE int64_t first_panel(int64_t block) const { return block * panels() / n_blocks(); }
};

struct MatmulArgs {
  int64_t rows, k_size, columns;
  const uint8_t* a;  // unsigned bytes, K innermost
  int64_t row_stride;
  Batches a_matrices;
  const int8_t* b;            // packed
  const int32_t* column_sums;  // initial accumulators of the columns of b
  Batches b_matrices;          // index of the packed matrix
  int32_t row_factor;          // The epilogue adds row_factor * sum of the row of a.
  float scale;
  OutputQParams y_qparams;
  uint8_t* y;      // [batch, rows, columns], one of both
  float* y_float;

  template <typename Visitor>
  void pointers(Visitor& visit) const {
    visit.tensor(a);
    visit.tensor(b);
    visit.tensor(column_sums);
    visit.tensor(y);
    visit.tensor(y_float);
  }

  int64_t k_groups() const { return (k_size + kKGroup - 1) / kKGroup; }
  int64_t panels() const { return (columns + kPanel - 1) / kPanel; }
  // Rows of a row block. Row blocks have about the same size.
  int64_t block_rows() const {
    const int64_t blocks = (rows + kBlockRows - 1) / kBlockRows;
    return blocks == 0 ? 1 : (rows + blocks - 1) / blocks;
  }
  int64_t row_blocks() const { return (rows + block_rows() - 1) / block_rows(); }
  int64_t column_blocks() const { return (panels() + kTaskPanels - 1) / kTaskPanels; }
};

}  // namespace fxquant

// Packs the rows begin <= i < end of all matrices of a.
FXQ_DECLARE_LOOP(pack_rows_loop, (const PackArgs& args, int64_t begin, int64_t end))
// Packs the panels begin <= i < end of all matrices of b.
FXQ_DECLARE_LOOP_WITH_DOT_PRODUCTS(pack_panels_loop, (const PackArgs& args, int64_t begin, int64_t end))
// Runs the tasks begin <= i < end: column_blocks() for each of the row_blocks() of each matrix of the result.
FXQ_DECLARE_LOOP_WITH_DOT_PRODUCTS(matmul_loop, (const MatmulArgs& args, int64_t begin, int64_t end))
