// What the bindings of fake_quantize_* share: their arguments, their checks, and their results.
#pragma once
#include <optional>

#include "common/call.h"
#include "common/numbers.h"
#include "common/tensor.h"

namespace fxquant {

struct FakeQuantizeTensorCall {
  static constexpr const char* kOp = "fxquant::fake_quantize_per_tensor_affine";

  Tensor input;
  double scale;
  int64_t zero_point;
  int64_t quant_min;
  int64_t quant_max;

  std::optional<int64_t> channel_axis() const { return std::nullopt; }
};

struct FakeQuantizeTensorQParamsCall {
  static constexpr const char* kOp = FakeQuantizeTensorCall::kOp;

  Tensor input;
  Tensor scale;
  Tensor zero_point;
  int64_t quant_min;
  int64_t quant_max;

  std::optional<int64_t> channel_axis() const { return std::nullopt; }
};

struct FakeQuantizeChannelCall {
  static constexpr const char* kOp = "fxquant::fake_quantize_per_channel_affine";

  Tensor input;
  Tensor scale;
  Tensor zero_point;
  int64_t axis;
  int64_t quant_min;
  int64_t quant_max;

  std::optional<int64_t> channel_axis() const { return check_axis(kOp, axis, input.dim()); }
};

struct FakeQuantizeBackwardCall {
  Tensor grad;
  Tensor mask;
};

// The tensors of a call, dense and in one order. The values of its qparams are not checked.
struct FakeQuantize {
  const char* op;
  Float type;
  std::optional<int64_t> axis;
  int64_t quant_min;
  int64_t quant_max;
  Tensor x;
  Tensor y;
  Tensor mask;  // undefined unless it is wanted

  template <typename Call>
  FakeQuantize(const Call& call, bool with_mask)
      : op(Call::kOp),
        type(float_type(op, "input", call.input.scalar_type())),
        axis(call.channel_axis()),
        quant_min(call.quant_min),
        quant_max(call.quant_max),
        x(dense(call.input)),
        y(empty_like_dense(x, x.scalar_type())) {
    check_limits(op, quant_min, quant_max, kInt32Min, kInt32Max);
    if (with_mask) mask = empty_like_dense(x, ScalarType::Bool);
  }

  bool* mask_data() const { return mask.defined() ? mask.mutable_data_ptr<bool>() : nullptr; }
};

// The gradient where the mask is true, and 0 elsewhere, in the order of the mask.
struct FakeQuantizeBackward {
  static constexpr const char* kOp = "fxquant::fake_quantize_backward";

  Float type;
  Tensor mask;
  Tensor grad;
  Tensor result;

  explicit FakeQuantizeBackward(const FakeQuantizeBackwardCall& call)
      : type(float_type(kOp, "grad", call.grad.scalar_type())),
        mask(dense(checked_mask(call))),
        grad(in_strides_of(mask, call.grad)),
        result(empty_like_dense(mask, grad.scalar_type())) {}

 private:
  static const Tensor& checked_mask(const FakeQuantizeBackwardCall& call) {
    if (call.mask.scalar_type() != ScalarType::Bool) fail_dtype(kOp, "mask", call.mask.scalar_type(), "bool");
    if (!same_shape(call.grad, call.mask)) {
      fail(std::string(kOp) + ": mask has the wrong shape", shape_of(call.mask), shape_of(call.grad) + ", as grad");
    }
    return call.mask;
  }
};

// QParams is that of the device: scale and zero point as its loops read them.
template <typename QParams>
QParams qparams_of(const FakeQuantizeTensorCall& call, const FakeQuantize& f) {
  check_zero_point(f.op, call.zero_point, call.quant_min, call.quant_max);
  return QParams(call.scale, call.zero_point);
}

template <typename QParams, typename Call>
QParams qparams_of(const Call& call, const FakeQuantize& f) {
  return QParams(f.op, call.input, call.scale, call.zero_point, channels_of(call.input, f.axis));
}

}  // namespace fxquant
