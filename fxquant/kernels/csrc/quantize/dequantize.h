// What the bindings of dequantize share: its arguments and their checks.
#pragma once
#include <optional>

#include "common/call.h"
#include "common/numbers.h"
#include "common/tensor.h"

namespace fxquant {

struct DequantizeCall {
  Tensor q;
  Tensor scale;
  Tensor zero_point;
  std::optional<int64_t> axis;
};

// The rest of a call, checked; its qparams are checked where they are read.
struct DequantizeTypes {
  static constexpr const char* kOp = "fxquant::dequantize";

  Integer type;
  std::optional<int64_t> axis;
  int64_t channels;

  explicit DequantizeTypes(const DequantizeCall& call)
      : type(integer_type(kOp, "q", call.q.scalar_type())),
        axis(check_axis(kOp, call.axis, call.q.dim())),
        channels(channels_of(call.q, axis)) {}
};

}  // namespace fxquant
