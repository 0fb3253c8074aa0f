#include <torch/csrc/stable/library.h>

#include "common/tensor.h"
#include "cuda/launch.h"

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

Tensor table_cuda(const Tensor& x_, const Tensor& table) {
  check_table("fxquant::table", x_, table);
  const Tensor x = dense(x_);
  const Tensor y = empty_like_dense(x, table.scalar_type());
  const Tensor entries = dense(table);
  for_each_pack(x, x.numel(),
                LookUp{static_cast<const uint8_t*>(x.const_data_ptr()),
                       static_cast<const uint8_t*>(entries.const_data_ptr()),
                       static_cast<uint8_t*>(y.mutable_data_ptr())});
  return y;
}

}  // namespace

FXQ_CUDA_LIBRARY(m) { m.impl("table", TORCH_BOX(&table_cuda)); }

}  // namespace fxquant
