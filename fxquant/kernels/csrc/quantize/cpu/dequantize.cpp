#include "quantize/dequantize.h"

#include "cpu/launch.h"
#include "cpu/qparams.h"
#include "quantize/cpu/loops/dequantize.h"

namespace fxquant {
namespace {

// Whether the distance of a 16-bit integer from a zero point may overflow an int32.
bool any_far(const std::vector<int32_t>& zero_points) {
  constexpr int32_t kFar = 1 << 30;
  for (const int32_t z : zero_points) {
    if (z < -kFar || z > kFar) return true;
  }
  return false;
}

Tensor dequantize_cpu(const DequantizeCall& call) {
  const DequantizeTypes types(call);
  QParams qparams(DequantizeTypes::kOp, call.q, call.scale, call.zero_point, types.channels);
  const Tensor q = dense(call.q);
  const Tensor y = empty_like_dense(q, ScalarType::Float);
  Layout layout = layout_of(q, types.axis);
  qparams.lengthen_rows(layout);
  const DequantizeArgs args{q.const_data_ptr(),
                            types.type,
                            types.type == Integer::kInt32 || any_far(qparams.zero_point),
                            y.mutable_data_ptr<float>(),
                            layout,
                            qparams.scale.data(),
                            qparams.zero_point.data()};
  launch(args, q.numel(), kGrain,
         [](const DequantizeArgs& a, int64_t begin, int64_t end, void*) { FXQ_LOOP(dequantize_loop)(a, begin, end); });
  return y;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fxquant, CPU, m) { m.impl("dequantize", FXQ_KERNEL(dequantize_cpu)); }

}  // namespace fxquant
