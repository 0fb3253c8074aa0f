#include "cpu/launch.h"
#include "norm/cpu/loops/softmax.h"
#include "norm/normalize.h"

namespace fxquant {
namespace {

Tensor softmax_cpu(const SoftmaxCall& c) {
  const Rows r = prepare_rows("fxquant::softmax", c);
  const SoftmaxArgs args{r.x.const_data_ptr(), static_cast<uint8_t*>(r.y.mutable_data_ptr()), r.type, r.columns,
                         r.x_scale, c.safe, r.y_qparams};
  launch(
      args, r.count, grain_of_rows(r.columns),
      [](const SoftmaxArgs& a, int64_t begin, int64_t end, void* scratch) {
        FXQ_LOOP(softmax_loop)(a, begin, end, static_cast<int32_t*>(scratch));
      },
      rows_together(r.columns) * r.columns * static_cast<int64_t>(sizeof(int32_t)));
  return r.y;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fxquant, CPU, m) { m.impl("softmax", FXQ_KERNEL(softmax_cpu)); }

}  // namespace fxquant
