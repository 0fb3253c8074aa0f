// What the bindings of quantize share: its arguments and their checks.
#pragma once
#include <optional>

#include "common/call.h"
#include "common/memory_format.h"
#include "common/numbers.h"

namespace fxquant {

struct QuantizeCall {
  Tensor x;
  Tensor scale;
  Tensor zero_point;
  int64_t quant_min;
  int64_t quant_max;
  ScalarType dtype;
  std::optional<int64_t> axis;
  bool channels_last;
};

// The rest of a call, checked; its qparams are checked where they are read.
struct QuantizeTypes {
  static constexpr const char* kOp = "fxquant::quantize";

  Float from;
  Integer to;
  std::optional<int64_t> axis;
  int64_t channels;

  explicit QuantizeTypes(const QuantizeCall& call)
      : from(float_type(kOp, "x", call.x.scalar_type())), to(integer_type(kOp, "dtype", call.dtype)) {
    check_integers(kOp, call.quant_min, call.quant_max, call.dtype);
    if (call.channels_last && call.x.dim() != 4) {
      fail(std::string(kOp) + ": channels_last is for images only", std::to_string(call.x.dim()) + " dimensions",
           "4: [N, C, H, W]");
    }
    axis = check_axis(kOp, call.axis, call.x.dim());
    channels = channels_of(call.x, axis);
  }
};

}  // namespace fxquant
