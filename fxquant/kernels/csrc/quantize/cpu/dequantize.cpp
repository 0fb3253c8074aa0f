#include <torch/csrc/stable/library.h>

#include "cpu/launch.h"
#include "cpu/qparams.h"
#include "quantize/cpu/loops/dequantize.h"

namespace fxquant {
namespace {

constexpr const char* kOp = "fxquant::dequantize";

// Whether the distance of a 16-bit integer from a zero point may overflow an int32.
bool any_far(const std::vector<int32_t>& zero_points) {
  constexpr int32_t kFar = 1 << 30;
  for (const int32_t z : zero_points) {
    if (z < -kFar || z > kFar) return true;
  }
  return false;
}

Tensor dequantize_cpu(const Tensor& q_, const Tensor& scale, const Tensor& zero_point, std::optional<int64_t> axis) {
  const Integer type = integer_type(kOp, "q", q_.scalar_type());
  if (axis.has_value()) axis = check_axis(kOp, *axis, q_.dim());
  QParams qparams(kOp, scale, zero_point, axis.has_value() ? q_.size(*axis) : 1);
  const Tensor q = dense(q_);
  const Tensor y = empty_like_dense(q, ScalarType::Float);
  Layout layout = layout_of(q, axis);
  qparams.lengthen_rows(layout);
  const DequantizeArgs args{q.const_data_ptr(),
                            type,
                            type == Integer::kInt32 || any_far(qparams.zero_point),
                            y.mutable_data_ptr<float>(),
                            layout,
                            qparams.scale.data(),
                            qparams.zero_point.data()};
  launch(args, q.numel(), kGrain,
         [](const DequantizeArgs& a, int64_t begin, int64_t end, void*) { FXQ_LOOP(dequantize_loop)(a, begin, end); });
  return y;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fxquant, CPU, m) { m.impl("dequantize", TORCH_BOX(&dequantize_cpu)); }

}  // namespace fxquant
