#include <torch/csrc/stable/library.h>

#include "common/tensor.h"
#include "cpu/launch.h"
#include "table/cpu/loops/table.h"

namespace fxquant {
namespace {

Tensor table_cpu(const Tensor& x_, const Tensor& table) {
  check_table("fxquant::table", x_, table);
  const Tensor x = dense(x_);
  const Tensor y = empty_like_dense(x, table.scalar_type());
  const Tensor entries = dense(table);
  const TableArgs args{static_cast<const uint8_t*>(x.const_data_ptr()),
                       static_cast<const uint8_t*>(entries.const_data_ptr()),
                       static_cast<uint8_t*>(y.mutable_data_ptr())};
  launch(args, x.numel(), kGrain,
         [](const TableArgs& a, int64_t begin, int64_t end, void*) { FXQ_LOOP(table_loop)(a, begin, end); });
  return y;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fxquant, CPU, m) { m.impl("table", TORCH_BOX(&table_cpu)); }

}  // namespace fxquant
