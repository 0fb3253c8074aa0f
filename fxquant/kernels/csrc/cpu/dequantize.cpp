#include <torch/csrc/stable/library.h>

#include "../common/qparams.h"
#include "loops/dequantize.h"

namespace fxquant {
namespace {

constexpr const char* kOp = "fxquant::dequantize";

Integer integer_type(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Byte: return Integer::kUint8;
    case ScalarType::Char: return Integer::kInt8;
    case ScalarType::Short: return Integer::kInt16;
    case ScalarType::Int: return Integer::kInt32;
    default: fail(std::string(kOp) + ": q has the wrong dtype", name_of(dtype), "uint8, int8, int16 or int32");
  }
}

Tensor dequantize_cpu(const Tensor& q_, const Tensor& scale, const Tensor& zero_point, std::optional<int64_t> axis) {
  const Integer type = integer_type(q_.scalar_type());
  if (axis.has_value()) axis = check_axis(kOp, *axis, q_.dim());
  const QParams qparams(kOp, scale, zero_point, axis.has_value() ? q_.size(*axis) : 1);
  const Tensor q = dense(q_);
  const Tensor y = empty_like_dense(q, ScalarType::Float);
  const DequantizeArgs args{q.const_data_ptr(),        type,
                            y.mutable_data_ptr<float>(), layout_of(q, axis),
                            qparams.scale.data(),      qparams.zero_point.data()};
  const auto loop = FXQ_LOOP(dequantize_loop);
  torch::stable::parallel_for(0, q.numel(), kGrain, [&](int64_t begin, int64_t end) { loop(args, begin, end); });
  return y;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fxquant, CPU, m) { m.impl("dequantize", TORCH_BOX(&dequantize_cpu)); }

}  // namespace fxquant
