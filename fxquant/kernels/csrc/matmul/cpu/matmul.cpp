#include "matmul/matmul.h"

#include "cpu/brgemm.h"
#include "cpu/launch.h"
#include "matmul/cpu/loops/matmul.h"
#include "matmul/cpu/loops/matmul_brgemm.h"
#include "matmul/cpu/loops/matmul_tiles.h"

namespace fxquant {
namespace {

// The distinct matrices of a batch: broadcasting repeats some, and each is packed once.
struct DistinctMatrices {
  Batches each;
  Batches which;
  int64_t count = 1;

  explicit DistinctMatrices(const Batches& all) : each(all), which(all) {
    for (int d = all.dims - 1; d >= 0; --d) {
      const bool repeated = all.stride[d] == 0;
      each.size[d] = repeated ? 1 : all.size[d];
      which.stride[d] = repeated ? 0 : count;
      count *= each.size[d];
    }
  }
};

Tensor bytes_for(const Tensor& like, int64_t size) { return empty_as(like, {size}, false, ScalarType::Byte); }

Tensor matmul_cpu(const MatmulCall& c) {
  const Matmul m = prepare_matmul(c);
  if (m.y.numel() == 0) return m.y;
  const bool on_tiles = uses_tile_loops() && m.k_size > 0;
  const bool by_framework = prefers_brgemm(m.rows, m.columns, m.k_size);
  const int64_t multiple = by_framework ? kBrgemmKMultiple : kKGroup;
  const int64_t padded = on_tiles ? tile_padded_k(m.k_size) : (m.k_size + multiple - 1) / multiple * multiple;
  const bool in_place = on_tiles && m.a.k_stride == 1 && padded == m.k_size;
  // b is multiplied as int8, a as uint8, but where tiles read it in place. Flipping the sign bit shifts the zero point by 128.
  const int32_t a_zero = m.a.zero_point + (m.a.is_signed && !in_place ? 128 : 0);
  const int32_t b_zero = m.b.zero_point - (m.b.is_signed ? 0 : 128);
  constexpr int64_t kWork = 1 << 19;  // products of a task: a few microseconds
  constexpr int64_t kPack = 16;       // products that take as long as to move a byte

  // Pack b.
  const DistinctMatrices of_b(m.b.matrices);
  const int64_t panels = (m.columns + kPanel - 1) / kPanel;
  const Tensor packed = bytes_for(c.a, of_b.count * panels * kPanel * padded);
  const Tensor column_sums = empty_as(c.a, {of_b.count * panels * kPanel}, false, ScalarType::Int);
  const PackArgs pack_b{m.b.data,
                        static_cast<uint8_t>(m.b.is_signed ? 0 : 0x80),
                        of_b.each,
                        m.b.outer_stride,
                        m.b.k_stride,
                        m.columns,
                        m.k_size,
                        padded,
                        on_tiles || by_framework ? kNBlockPanels : 1,
                        m.k_size * a_zero * b_zero,
                        -a_zero,
                        static_cast<uint8_t*>(packed.mutable_data_ptr()),
                        column_sums.mutable_data_ptr<int32_t>()};
  launch(pack_b, of_b.count * panels, std::max<int64_t>(kWork / (kPanel * padded * kPack + 1), 1),
         [](const PackArgs& p, int64_t begin, int64_t end, void*) { FXQ_LOOP_WITH_DOT_PRODUCTS(pack_panels_loop)(p, begin, end); });

  // Multiply on tiles or by the framework's kernels, which pack a themselves.
  MatmulArgs args{m.rows,
                  m.k_size,
                  m.columns,
                  m.a.data,
                  m.a.outer_stride,
                  m.a.matrices,
                  static_cast<const int8_t*>(packed.const_data_ptr()),
                  column_sums.const_data_ptr<int32_t>(),
                  of_b.which,
                  -b_zero,
                  m.scale,
                  m.y_qparams,
                  m.is_float ? nullptr : static_cast<uint8_t*>(m.y.mutable_data_ptr()),
                  m.is_float ? m.y.mutable_data_ptr<float>() : nullptr};
  constexpr int64_t kEpilogue = 16;  // products that take as long as the epilogue of one output
  constexpr int64_t kFaster = 4;     // than our own products without tiles, at least
  if (on_tiles) {
    const TileMatmulArgs whole{args, padded, m.a.k_stride, m.a.is_signed, in_place};
    const int64_t work = std::min(kTileStripRows, m.rows) * kNBlockPanels * kPanel * (padded / kFaster + kEpilogue);
    launch(whole, m.batch * whole.strips() * whole.n_blocks(), std::max<int64_t>(kWork / work, 1),
           [](const TileMatmulArgs& x, int64_t begin, int64_t end, void* scratch) {
             FXQ_TILE_LOOP(matmul_tiles_loop)(x, begin, end, static_cast<uint8_t*>(scratch));
           },
           whole.scratch());
    return m.y;
  }
  if (by_framework) {
    const BrgemmMatmulArgs whole{args, padded, m.a.k_stride, static_cast<uint8_t>(m.a.is_signed ? 0x80 : 0)};
    const int64_t work = std::min(kBrgemmRows, m.rows) * kBrgemmColumns * (padded / kFaster + kEpilogue);
    launch(whole, m.batch * whole.strips() * whole.n_blocks(), std::max<int64_t>(kWork / work, 1),
           [](const BrgemmMatmulArgs& x, int64_t begin, int64_t end, void* scratch) {
             FXQ_LOOP_WITH_VNNI(matmul_brgemm_loop)(x, begin, end, static_cast<uint8_t*>(scratch));
           },
           lhs_buffer_bytes(kBrgemmRows, padded));
    return m.y;
  }
  // Pack a, unless it is unsigned with K innermost.
  std::optional<Tensor> rows;
  if (m.a.is_signed || m.a.k_stride != 1) {
    const DistinctMatrices of_a(m.a.matrices);
    rows = bytes_for(c.a, of_a.count * m.rows * padded);
    const PackArgs pack_a{m.a.data,
                          static_cast<uint8_t>(m.a.is_signed ? 0x80 : 0),
                          of_a.each,
                          m.a.outer_stride,
                          m.a.k_stride,
                          m.rows,
                          m.k_size,
                          padded,
                          1,
                          0,
                          0,
                          static_cast<uint8_t*>(rows->mutable_data_ptr()),
                          nullptr};
    launch(pack_a, of_a.count * m.rows, std::max<int64_t>(kWork / (padded * kPack + 1), 1),
           [](const PackArgs& p, int64_t begin, int64_t end, void*) { FXQ_LOOP(pack_rows_loop)(p, begin, end); });
    args.a = pack_a.to;
    args.row_stride = padded;
    args.a_matrices = of_a.which;
    for (int d = 0; d < args.a_matrices.dims; ++d) args.a_matrices.stride[d] *= m.rows * padded;
  }

  // Multiply by our own kernels.
  const int64_t work = std::min(kBlockRows, m.rows) * std::min(kTaskPanels, panels) * kPanel * (padded + kEpilogue);
  launch(args, m.batch * args.row_blocks() * args.column_blocks(), std::max<int64_t>(kWork / work, 1),
         [](const MatmulArgs& x, int64_t begin, int64_t end, void*) { FXQ_LOOP_WITH_DOT_PRODUCTS(matmul_loop)(x, begin, end); });
  return m.y;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fxquant, CPU, m) { m.impl("matmul", FXQ_KERNEL(matmul_cpu)); }

}  // namespace fxquant
