#include "norm/layer_norm.h"

#include <torch/csrc/stable/library.h>

#include "cpu/launch.h"
#include "norm/cpu/loops/layer_norm.h"

namespace fxquant {
namespace {

Tensor layer_norm_cpu(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps, double x_scale,
                      double scale, int64_t zero_point, int64_t quant_min, int64_t quant_max, ScalarType dtype) {
  const LayerNorm n =
      prepare_layer_norm(x, weight, bias, eps, x_scale, scale, zero_point, quant_min, quant_max, dtype);
  const Rows& r = n.rows;
  const LayerNormArgs args{r.x.const_data_ptr(),
                           static_cast<const float*>(n.weight.const_data_ptr()),
                           static_cast<const float*>(n.bias.const_data_ptr()),
                           static_cast<uint8_t*>(r.y.mutable_data_ptr()),
                           r.type,
                           r.columns,
                           n.eps,
                           r.y_qparams};
  launch(
      args, r.count, grain_of_rows(r.columns),
      [](const LayerNormArgs& a, int64_t begin, int64_t end, void* scratch) {
        FXQ_LOOP(layer_norm_loop)(a, begin, end, static_cast<int32_t*>(scratch));
      },
      r.columns * static_cast<int64_t>(sizeof(int32_t)));
  return r.y;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fxquant, CPU, m) { m.impl("layer_norm", TORCH_BOX(&layer_norm_cpu)); }

}  // namespace fxquant
