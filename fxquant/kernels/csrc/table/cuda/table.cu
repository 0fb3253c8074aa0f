// Replaces each byte by its entry of the table, in the order of memory. A thread takes a pack of bytes.
#include "cuda/launch.h"
#include "table/table.h"

namespace fxquant {
namespace {

struct LookUp {
  const uint8_t* x;
  const uint8_t* table;
  uint8_t* y;

  static constexpr int kPack = kPackBytes;
  bool aligned() const { return starts_pack<kPack>(x) && starts_pack<kPack>(y); }

  template <int N>
  FXQ_MEMBER void run(int64_t i) const {
    const Pack<uint8_t, N> in = load_pack<N>(x + i);
    Pack<uint8_t, N> out;
    for (int j = 0; j < N; ++j) out.at[j] = table[in.at[j]];
    store_pack(out, y + i);
  }
};

Tensor table_cuda(const TableCall& call) {
  const Table t = prepare_table(call);
  for_each_pack(t.x, t.x.numel(), LookUp{t.x_bytes(), t.entry_bytes(), t.y_bytes()});
  return t.y;
}

}  // namespace

FXQ_CUDA_LIBRARY(m) { m.impl("table", FXQ_KERNEL(table_cuda)); }

}  // namespace fxquant
