#include <torch/csrc/stable/library.h>

#include <tuple>

#include "cpu/qparams.h"
#include "fake_quantize/cpu/loops/fake_quantize.h"

namespace fxquant {
namespace {

constexpr const char* kTensorOp = "fxquant::fake_quantize_per_tensor_affine";
constexpr const char* kChannelOp = "fxquant::fake_quantize_per_channel_affine";
constexpr const char* kBackwardOp = "fxquant::fake_quantize_backward";

// The mask is undefined unless it is wanted.
struct Result {
  Tensor y;
  Tensor mask;

  std::tuple<Tensor, Tensor> both() const { return {y, mask}; }
};

Result run(const char* op, const Tensor& x_, QParams qparams, std::optional<int64_t> axis, int64_t quant_min,
           int64_t quant_max, bool with_mask) {
  const Float type = float_type(op, "input", x_.scalar_type());
  check_limits(op, quant_min, quant_max, kInt32Min, kInt32Max);
  for (const int32_t z : qparams.zero_point) check_zero_point(op, z, quant_min, quant_max);
  const Tensor x = dense(x_);
  Result result{empty_like_dense(x, x.scalar_type()), Tensor()};
  if (with_mask) result.mask = empty_like_dense(x, ScalarType::Bool);
  Layout layout = layout_of(x, axis);
  const int64_t channels = layout.channels;
  qparams.lengthen_rows(layout);
  const QParamsOfEitherType arrays(type, qparams, quant_min, quant_max);
  const PairedQParamsArrays paired_arrays(type, layout, qparams, quant_min, quant_max);
  const FakeQuantizeArgs args{type,
                              x.const_data_ptr(),
                              result.y.mutable_data_ptr(),
                              with_mask ? result.mask.mutable_data_ptr<bool>() : nullptr,
                              layout,
                              channels,
                              arrays.floats.view(),
                              arrays.doubles.view(),
                              paired_arrays.view()};
  const auto loop = FXQ_LOOP(fake_quantize_loop);
  torch::stable::parallel_for(0, x.numel(), kGrain, [&](int64_t begin, int64_t end) { loop(args, begin, end); });
  return result;
}

Result per_tensor(const Tensor& x, double scale, int64_t zero_point, int64_t quant_min, int64_t quant_max,
                  bool with_mask) {
  check_limits(kTensorOp, quant_min, quant_max, kInt32Min, kInt32Max);
  check_zero_point(kTensorOp, zero_point, quant_min, quant_max);
  return run(kTensorOp, x, QParams(scale, zero_point), std::nullopt, quant_min, quant_max, with_mask);
}

Result per_tensor(const Tensor& x, const Tensor& scale, const Tensor& zero_point, int64_t quant_min,
                  int64_t quant_max, bool with_mask) {
  return run(kTensorOp, x, QParams(kTensorOp, scale, zero_point, 1), std::nullopt, quant_min, quant_max, with_mask);
}

Result per_channel(const Tensor& x, const Tensor& scale, const Tensor& zero_point, int64_t axis, int64_t quant_min,
                   int64_t quant_max, bool with_mask) {
  axis = check_axis(kChannelOp, axis, x.dim());
  QParams qparams(kChannelOp, scale, zero_point, x.size(axis));
  return run(kChannelOp, x, std::move(qparams), axis, quant_min, quant_max, with_mask);
}

Tensor tensor_cpu(const Tensor& x, double scale, int64_t zero_point, int64_t quant_min, int64_t quant_max) {
  return per_tensor(x, scale, zero_point, quant_min, quant_max, false).y;
}

Tensor tensor_qparams_cpu(const Tensor& x, const Tensor& scale, const Tensor& zero_point, int64_t quant_min,
                          int64_t quant_max) {
  return per_tensor(x, scale, zero_point, quant_min, quant_max, false).y;
}

Tensor channel_cpu(const Tensor& x, const Tensor& scale, const Tensor& zero_point, int64_t axis, int64_t quant_min,
                   int64_t quant_max) {
  return per_channel(x, scale, zero_point, axis, quant_min, quant_max, false).y;
}

std::tuple<Tensor, Tensor> tensor_mask_cpu(const Tensor& x, double scale, int64_t zero_point, int64_t quant_min,
                                           int64_t quant_max) {
  return per_tensor(x, scale, zero_point, quant_min, quant_max, true).both();
}

std::tuple<Tensor, Tensor> tensor_qparams_mask_cpu(const Tensor& x, const Tensor& scale, const Tensor& zero_point,
                                                   int64_t quant_min, int64_t quant_max) {
  return per_tensor(x, scale, zero_point, quant_min, quant_max, true).both();
}

std::tuple<Tensor, Tensor> channel_mask_cpu(const Tensor& x, const Tensor& scale, const Tensor& zero_point,
                                            int64_t axis, int64_t quant_min, int64_t quant_max) {
  return per_channel(x, scale, zero_point, axis, quant_min, quant_max, true).both();
}

Tensor backward_cpu(const Tensor& grad_, const Tensor& mask_) {
  const Float type = float_type(kBackwardOp, "grad", grad_.scalar_type());
  check_mask(kBackwardOp, grad_, mask_);
  const Tensor mask = dense(mask_);
  const Tensor grad = in_strides_of(mask, grad_);
  const Tensor result = empty_like_dense(mask, grad.scalar_type());
  const FakeQuantizeBackwardArgs args{type, grad.const_data_ptr(), mask.const_data_ptr<bool>(),
                                      result.mutable_data_ptr()};
  const auto loop = FXQ_LOOP(fake_quantize_backward_loop);
  torch::stable::parallel_for(0, mask.numel(), kGrain, [&](int64_t begin, int64_t end) { loop(args, begin, end); });
  return result;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fxquant, CPU, m) {
  m.impl("fake_quantize_per_tensor_affine", TORCH_BOX(&tensor_cpu));
  m.impl("fake_quantize_per_tensor_affine.tensor_qparams", TORCH_BOX(&tensor_qparams_cpu));
  m.impl("fake_quantize_per_channel_affine", TORCH_BOX(&channel_cpu));
  m.impl("fake_quantize_per_tensor_affine_cachemask", TORCH_BOX(&tensor_mask_cpu));
  m.impl("fake_quantize_per_tensor_affine_cachemask.tensor_qparams", TORCH_BOX(&tensor_qparams_mask_cpu));
  m.impl("fake_quantize_per_channel_affine_cachemask", TORCH_BOX(&channel_mask_cpu));
  m.impl("fake_quantize_backward", TORCH_BOX(&backward_cpu));
}

}  // namespace fxquant
