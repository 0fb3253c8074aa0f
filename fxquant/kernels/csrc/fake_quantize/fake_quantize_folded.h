// What the bindings of fake_quantize_folded and of its gradient share: their arguments, their checks, and their results.
#pragma once
#include "common/call.h"
#include "common/memory_format.h"
#include "common/numbers.h"

namespace fxquant {

struct FakeQuantizeFoldedCall {
  static constexpr const char* kOp = "fxquant::fake_quantize_folded";

  Tensor input;
  Tensor factor;
  Tensor scale;
  Tensor zero_point;
  int64_t quant_min;
  int64_t quant_max;
};

struct FakeQuantizeFoldedBackwardCall {
  static constexpr const char* kOp = "fxquant::fake_quantize_folded_backward";

  Tensor grad;
  Tensor input;
  Tensor factor;
  Tensor scale;
  Tensor zero_point;
  int64_t quant_min;
  int64_t quant_max;

  FakeQuantizeFoldedCall forward() const { return {input, factor, scale, zero_point, quant_min, quant_max}; }
};

// The tensors of a call, contiguous. Factors and the values of qparams are checked where they are read.
struct FakeQuantizeFolded {
  const char* op;
  FakeQuantizeFoldedCall call;
  Float type;
  int64_t channels;
  bool per_tensor;  // one scale and zero point for all channels
  Tensor x;
  Tensor grad;    // of the result; undefined unless a gradient is asked for
  Tensor result;  // the values, or the gradient of x

  explicit FakeQuantizeFolded(const FakeQuantizeFoldedCall& call_) : FakeQuantizeFolded(call_.kOp, call_) {}

  explicit FakeQuantizeFolded(const FakeQuantizeFoldedBackwardCall& backward)
      : FakeQuantizeFolded(backward.kOp, backward.forward()) {
    check_gradient(op, backward.grad, backward.input);
    grad = row_major(backward.grad);
  }

  int64_t inner() const { return x.numel() / channels; }

 private:
  FakeQuantizeFolded(const char* op_, const FakeQuantizeFoldedCall& call_)
      : op(op_),
        call(call_),
        type(float_type(op, "input", call.input.scalar_type())),
        channels(checked_channels()),
        per_tensor(call.scale.numel() == 1),
        x(row_major(call.input)),
        result(empty_like_dense(x, x.scalar_type())) {
    check_limits(op, call.quant_min, call.quant_max, kInt32Min, kInt32Max);
    check_count(op, "factor", call.factor, channels);
  }

  int64_t checked_channels() const {
    if (call.input.dim() == 0) fail(std::string(op) + ": input has no channels", "[]", "at least one dimension");
    return call.input.size(0);
  }
};

}  // namespace fxquant
