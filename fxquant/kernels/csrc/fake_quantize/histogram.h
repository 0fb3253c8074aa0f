// Checks and results of fxquant::histogram, for the CPU and for CUDA.
#pragma once
#include "common/call.h"
#include "common/memory_format.h"
#include "common/numbers.h"
#include "math/histogram.h"

namespace fxquant {

struct HistogramCall {
  Tensor x;
  Tensor counts;
  Tensor low;
  Tensor high;
  std::optional<int64_t> axis;
};

// A call, checked: what is to be counted, what was counted before, and where the sum of both goes.
struct Histogram {
  static constexpr const char* kOp = "fxquant::histogram";

  Float type;
  int64_t rows;
  int64_t bins;
  Tensor x;                // [rows, ...] and contiguous; or, of one row, dense
  Tensor old_counts;       // int64 [rows, bins]
  Tensor old_low;          // float32 [rows]
  Tensor old_high;         // float32 [rows]
  Tensor counts;           // new ones, all 0
  Tensor low;              // new ones, not filled
  Tensor high;
  Tensor nonfinite;        // int64 [], 0

  explicit Histogram(const HistogramCall& call)
      : type(float_type(kOp, "x", call.x.scalar_type())),
        rows(channels_of(call.x, check_axis(kOp, call.axis, call.x.dim()))),
        bins(checked_bins(call.counts)),
        x(call.axis.has_value() ? rows_first(call.x, check_axis(kOp, *call.axis, call.x.dim())) : dense(call.x)),
        old_counts(checked("counts", call.counts, ScalarType::Long, "int64", call.axis, true)),
        old_low(checked("low", call.low, ScalarType::Float, "float32", call.axis, false)),
        old_high(checked("high", call.high, ScalarType::Float, "float32", call.axis, false)),
        counts(torch::stable::new_zeros(old_counts, old_counts.sizes())),
        low(empty_as(old_low, sizes_of(old_low), false)),
        high(empty_as(old_high, sizes_of(old_high), false)),
        nonfinite(torch::stable::new_zeros(old_counts, {})) {}

  int64_t length() const { return rows == 0 ? 0 : x.numel() / rows; }

 private:
  static int64_t checked_bins(const Tensor& counts) {
    const int64_t bins = counts.dim() > 0 ? counts.size(counts.dim() - 1) : 0;
    if (bins < kFewestBins || bins > kMostBins) {
      fail(std::string(kOp) + ": counts has the wrong number of bins", bins, "16 to 65536");
    }
    return bins;
  }

  Tensor checked(const char* argument, const Tensor& state, ScalarType dtype, const char* expected,
                 std::optional<int64_t> axis, bool binned) const {
    if (state.scalar_type() != dtype) fail_dtype(kOp, argument, state.scalar_type(), expected);
    if (state.get_device_index() != x.get_device_index() || state.is_cpu() != x.is_cpu()) {
      fail(std::string(kOp) + ": " + argument + " lies on another device than the tensor",
           state.is_cpu() ? "cpu" : "another device", x.is_cpu() ? "cpu" : "that of x");
    }
    std::string shape = axis.has_value() ? std::to_string(rows) : "";
    if (binned) shape += (shape.empty() ? "" : ", ") + std::to_string(bins);
    shape = "[" + shape + "]";
    if (shape_of(state) != shape) {
      fail(std::string(kOp) + ": " + argument + " has the wrong shape", shape_of(state), shape);
    }
    return row_major(state);
  }

  // In what order a row lies is all the same.
  static Tensor rows_first(const Tensor& x, int64_t axis) {
    return row_major(torch::stable::transpose(x, 0, axis));
  }
};

}  // namespace fxquant
