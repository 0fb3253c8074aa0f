// What the bindings of fake_quantize_learnable_backward share: its arguments, their checks, and a result.
#pragma once
#include <optional>

#include "common/call.h"
#include "common/memory_format.h"
#include "common/numbers.h"

namespace fxquant {

struct FakeQuantizeLearnableBackwardCall {
  Tensor grad;
  Tensor input;
  Tensor scale;
  Tensor zero_point;
  std::optional<int64_t> axis;
  int64_t quant_min;
  int64_t quant_max;
  double grad_factor;
};

// The tensors of a call, dense and in one order. The values of its qparams are not checked.
struct LearnableBackward {
  static constexpr const char* kOp = "fxquant::fake_quantize_learnable_backward";

  Float type;
  std::optional<int64_t> axis;
  int64_t channels;
  Tensor x;
  Tensor grad;
  Tensor dx;

  explicit LearnableBackward(const FakeQuantizeLearnableBackwardCall& call)
      : type(checked_type(call)),
        axis(check_axis(kOp, call.axis, call.input.dim())),
        channels(channels_of(call.input, axis)),
        x(dense(call.input)),
        grad(in_strides_of(x, call.grad)),
        dx(empty_like_dense(x, x.scalar_type())) {}

 private:
  static Float checked_type(const FakeQuantizeLearnableBackwardCall& call) {
    const Float type = float_type(kOp, "input", call.input.scalar_type());
    check_gradient(kOp, call.grad, call.input);
    check_limits(kOp, call.quant_min, call.quant_max, kInt32Min, kInt32Max);
    // Otherwise a zero point that is learned could not stay within the limits.
    if (call.quant_min > 0 || call.quant_max < 0) {
      fail(std::string(kOp) + ": the limits do not hold 0",
           std::to_string(call.quant_min) + " and " + std::to_string(call.quant_max), "quant_min <= 0 <= quant_max");
    }
    return type;
  }
};

}  // namespace fxquant
