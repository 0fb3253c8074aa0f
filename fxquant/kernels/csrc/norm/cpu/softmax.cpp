#include <torch/csrc/stable/library.h>

#include "cpu/launch.h"
#include "norm/cpu/loops/softmax.h"
#include "norm/normalize.h"

namespace fxquant {
namespace {

Tensor softmax_cpu(const Tensor& x, double x_scale, bool safe, double scale, int64_t zero_point, int64_t quant_min,
                   int64_t quant_max, ScalarType dtype) {
  const Rows r = prepare_rows("fxquant::softmax", x, x_scale, scale, zero_point, quant_min, quant_max, dtype);
  const SoftmaxArgs args{r.x.const_data_ptr(), static_cast<uint8_t*>(r.y.mutable_data_ptr()), r.type, r.columns,
                         r.x_scale, safe, r.y_qparams};
  launch(
      args, r.count, grain_of_rows(r.columns),
      [](const SoftmaxArgs& a, int64_t begin, int64_t end, void* scratch) {
        FXQ_LOOP(softmax_loop)(a, begin, end, static_cast<int32_t*>(scratch));
      },
      r.columns * static_cast<int64_t>(sizeof(int32_t)));
  return r.y;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fxquant, CPU, m) { m.impl("softmax", TORCH_BOX(&softmax_cpu)); }

}  // namespace fxquant
