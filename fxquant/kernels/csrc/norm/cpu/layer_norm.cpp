#include "norm/layer_norm.h"

#include "cpu/launch.h"
#include "norm/cpu/loops/layer_norm.h"

namespace fxquant {
namespace {

Tensor layer_norm_cpu(const LayerNormCall& c) {
  const LayerNorm n = prepare_layer_norm(c);
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
      rows_together(r.columns) * r.columns * static_cast<int64_t>(sizeof(int32_t)));
  return r.y;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fxquant, CPU, m) { m.impl("layer_norm", FXQ_KERNEL(layer_norm_cpu)); }

}  // namespace fxquant
