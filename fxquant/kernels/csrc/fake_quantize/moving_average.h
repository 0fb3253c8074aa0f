// The arguments of moving_average_qparams, checked, and its results.
#pragma once
#include <torch/csrc/stable/ops.h>

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "common/checks.h"
#include "common/memory_format.h"
#include "common/numbers.h"
#include "math/qparams.h"

namespace fxquant {

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

  MovingAverage(const Tensor& x, const Tensor& running_min_, const Tensor& running_max_, std::optional<int64_t> axis_,
                double averaging, double eps, int64_t quant_min, int64_t quant_max, std::optional<int64_t> middle)
      : type(float_type(kOp, "x", x.scalar_type())),
        axis(axis_.has_value() ? std::optional<int64_t>(check_axis(kOp, *axis_, x.dim())) : std::nullopt),
        channels(axis.has_value() ? x.size(*axis) : 1),
        running_min(checked("running_min", running_min_)),
        running_max(checked("running_max", running_max_)) {
    if (x.numel() == 0) fail(std::string(kOp) + ": x is empty", shape_of(x), "at least one value");
    check_limits(kOp, quant_min, quant_max, kInt32Min, kInt32Max);
    if (middle.has_value()) check_zero_point(kOp, *middle, quant_min, quant_max);
    check_real("averaging_constant", averaging);
    check_real("eps", eps);
    choice = {static_cast<float>(eps), static_cast<float>(averaging), static_cast<int32_t>(quant_min),
              static_cast<int32_t>(quant_max), static_cast<int32_t>(middle.value_or(0)), middle.has_value()};
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

  static void check_real(const char* argument, double value) {
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
