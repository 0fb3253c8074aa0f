#include "linear/weight_only_linear.h"

#include <algorithm>

#include "cpu/launch.h"
#include "linear/cpu/loops/weight_only_linear.h"

namespace fxquant {
namespace {

Tensor weight_only_linear_cpu(const WeightOnlyLinearCall& call) {
  const WeightOnlyLinear p = prepare_weight_only_linear(call);
  if (p.rows == 0) return p.y;
  const WeightOnlyLinearArgs args{p.shape, static_cast<const float*>(p.x.const_data_ptr()),
                                  static_cast<float*>(p.y.mutable_data_ptr()), p.rows};
  const int64_t products = kPanelChannels * std::max<int64_t>(p.shape.in_features(), 1) * p.rows;
  launch(
      args, p.shape.panels, std::max<int64_t>(4 * kGrain / products, 1),
      [](const WeightOnlyLinearArgs& a, int64_t begin, int64_t end, void* scratch) {
        FXQ_LOOP(weight_only_linear_loop)(a, begin, end, static_cast<float*>(scratch));
      },
      kWeightOnlyScratch * static_cast<int64_t>(sizeof(float)));
  return p.y;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fxquant, CPU, m) { m.impl("weight_only_linear", FXQ_KERNEL(weight_only_linear_cpu)); }

}  // namespace fxquant
