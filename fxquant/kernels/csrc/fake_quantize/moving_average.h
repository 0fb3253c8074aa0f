// The arguments of moving_average_qparams, checked, and its results.
#pragma once
#include <torch/csrc/stable/ops.h>

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "common/call.h"
#include "common/checks.h"
#include "common/memory_format.h"
#include "common/numbers.h"
#include "math/qparams.h"

namespace fxquant {

struct MovingAverageQParamsCall {
  Tensor x;
  Tensor running_min;
  Tensor running_max;
  std::optional<int64_t> axis;
  double averaging_constant;
  double eps;
  int64_t quant_min;
  int64_t quant_max;
  std::optional<int64_t> middle;
};

// A call, checked.
struct MovingAverage {
  struct Results {
    Tensor low;
    Tensor high;
    Tensor scale;
    Tensor zero_point;
    Tensor nonfinite;  // int64 [], not set
  };

  Float type;
  std::optional<int64_t> axis;
  int64_t channels;
  Tensor running_min;
  Tensor running_max;
  QParamsOptions choice;

  explicit MovingAverage(const MovingAverageQParamsCall& call)
      : type(float_type(kOp, "x", call.x.scalar_type())),
        axis(check_axis(kOp, call.axis, call.x.dim())),
        channels(channels_of(call.x, axis)),
        running_min(checked("running_min", call.running_min)),
        running_max(checked("running_max", call.running_max)) {
    if (call.x.numel() == 0) fail(std::string(kOp) + ": x is empty", shape_of(call.x), "at least one value");
    check_limits(kOp, call.quant_min, call.quant_max, kInt32Min, kInt32Max);
    if (call.middle.has_value()) check_zero_point(kOp, *call.middle, call.quant_min, call.quant_max);
    check_finite("averaging_constant", call.averaging_constant);
    check_finite("eps", call.eps);
    choice = {static_cast<float>(call.eps),          static_cast<float>(call.averaging_constant),
              static_cast<int32_t>(call.quant_min),  static_cast<int32_t>(call.quant_max),
              static_cast<int32_t>(call.middle.value_or(0)), call.middle.has_value()};
  }

  Results results() const {
    return {empty_as(running_min, sizes_of(running_min), false, ScalarType::Float),
            empty_as(running_min, sizes_of(running_max), false, ScalarType::Float),
            empty_as(running_min, {channels}, false, ScalarType::Float),
            empty_as(running_min, {channels}, false, ScalarType::Int),
            empty_as(running_min, {}, false, ScalarType::Long)};
  }

 private:
  static constexpr const char* kOp = "fxquant::moving_average_qparams";

  static void check_finite(const char* argument, double value) {
    if (!(std::abs(value) <= std::numeric_limits<float>::max())) {
      fail(std::string(kOp) + ": " + argument + " is out of range", value, "a finite float32");
    }
  }

  Tensor checked(const char* argument, const Tensor& range) const {
    if (range.scalar_type() != ScalarType::Float) fail_dtype(kOp, argument, range.scalar_type(), "float32");
    check_count(kOp, argument, range, channels);
    return row_major(range);
  }
};

}  // namespace fxquant
