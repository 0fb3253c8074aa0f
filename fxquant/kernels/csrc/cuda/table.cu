#include <torch/csrc/stable/library.h>

#include "../common/tensor.h"
#include "launch.h"

namespace fxquant {
namespace {

struct LookUp {
  const uint8_t* x;
  const uint8_t* table;
  uint8_t* y;

  __device__ void operator()(int64_t i) const { y[i] = table[x[i]]; }
};

Tensor table_cuda(const Tensor& x_, const Tensor& table) {
  check_table("fxquant::table", x_, table);
  const Tensor x = dense(x_);
  const Tensor y = empty_like_dense(x, table.scalar_type());
  const Tensor entries = dense(table);
  for_each(x, x.numel(),
           LookUp{static_cast<const uint8_t*>(x.const_data_ptr()), static_cast<const uint8_t*>(entries.const_data_ptr()),
                  static_cast<uint8_t*>(y.mutable_data_ptr())});
  return y;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fxquant, CUDA, m) { m.impl("table", TORCH_BOX(&table_cuda)); }

}  // namespace fxquant
