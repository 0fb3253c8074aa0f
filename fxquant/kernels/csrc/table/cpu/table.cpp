#include "cpu/launch.h"
#include "table/cpu/loops/table.h"
#include "table/table.h"

namespace fxquant {
namespace {

Tensor table_cpu(const TableCall& call) {
  const Table t = prepare_table(call);
  const TableArgs args{t.x_bytes(), t.entry_bytes(), t.y_bytes()};
  launch(args, t.x.numel(), kGrain,
         [](const TableArgs& a, int64_t begin, int64_t end, void*) { FXQ_LOOP(table_loop)(a, begin, end); });
  return t.y;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fxquant, CPU, m) { m.impl("table", FXQ_KERNEL(table_cpu)); }

}  // namespace fxquant
