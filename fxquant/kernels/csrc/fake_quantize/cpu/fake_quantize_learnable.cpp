#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "common/memory_format.h"
#include "cpu/qparams.h"
#include "fake_quantize/cpu/loops/fake_quantize_learnable.h"

namespace fxquant {
namespace {

constexpr const char* kOp = "fxquant::fake_quantize_learnable_backward";

// How many parts are summed on their own: it depends on sizes alone, so that the result does not depend on threads.
int64_t parts_of(int64_t numel, int64_t channels) {
  constexpr int64_t kMost = 64;
  constexpr int64_t kPerSum = 8;  // elements for each sum that a part keeps, so that sums cost little beside them
  return std::max<int64_t>(1, std::min({kMost, numel / kGrain, numel / (std::max<int64_t>(channels, 1) * kPerSum)}));
}

// How many sums are needed for `channels` channels in a row of `row`: a whole number of vectors where that is possible, since
// channels lie side by side in them.
int64_t period_of(int64_t channels, int64_t row) {
  int64_t period = channels;
  while (period % kSumLanes != 0 && period < row) period *= 2;
  return period;
}

// Sums of one row of channels; a row may be several times the channels of the grid.
Tensor gradient_of(const Tensor& like, const std::vector<double>& sums, int64_t rows, int64_t row, int64_t channels,
                   const std::vector<float>* times, double factor) {
  const Tensor result = empty_as(like, sizes_of(like), false, ScalarType::Float);
  float* values = result.mutable_data_ptr<float>();
  for (int64_t c = 0; c < channels; ++c) {
    double sum = 0;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = c; i < row; i += channels) sum += sums[r * row + i];
    }
    values[c] = static_cast<float>(sum * factor * (times ? -static_cast<double>((*times)[c]) : 1.0));
  }
  return like.scalar_type() == ScalarType::Float ? result : torch::stable::to(result, like.scalar_type());
}

std::tuple<Tensor, Tensor, Tensor> backward_cpu(const Tensor& grad_, const Tensor& x_, const Tensor& scale,
                                                const Tensor& zero_point, std::optional<int64_t> axis,
                                                int64_t quant_min, int64_t quant_max, double grad_factor) {
  const Float type = float_type(kOp, "input", x_.scalar_type());
  check_gradient(kOp, grad_, x_);
  check_learnable_limits(kOp, quant_min, quant_max);
  if (axis.has_value()) axis = check_axis(kOp, *axis, x_.dim());
  const int64_t channels = axis.has_value() ? x_.size(*axis) : 1;
  QParams qparams(kOp, scale, zero_point, channels);
  for (const int32_t z : qparams.zero_point) check_zero_point(kOp, z, quant_min, quant_max);
  const Tensor x = dense(x_);
  const Tensor grad = in_strides_of(x, grad_);
  const Tensor dx = empty_like_dense(x, x.scalar_type());
  Layout layout = layout_of(x, axis);
  qparams.lengthen_rows(layout);
  const QParamsOfEitherType arrays(type, qparams, quant_min, quant_max);
  const PairedQParamsArrays paired_arrays(type, layout, qparams, quant_min, quant_max);
  const LearnableBackwardArgs args{type,
                                   grad.const_data_ptr(),
                                   x.const_data_ptr(),
                                   dx.mutable_data_ptr(),
                                   layout,
                                   channels,
                                   arrays.floats.view(),
                                   arrays.doubles.view(),
                                   paired_arrays.view()};
  const int64_t row = period_of(channels, static_cast<int64_t>(qparams.scale.size()));
  const int64_t numel = x.numel();
  const int64_t parts = parts_of(numel, row);
  std::vector<double> scale_sums(parts * row);
  std::vector<double> clipped_sums(parts * row);
  const auto loop = FXQ_LOOP(fake_quantize_learnable_loop);
  torch::stable::parallel_for(0, numel > 0 ? parts : 0, 1, [&](int64_t first, int64_t last) {
    for (int64_t part = first; part < last; ++part) {
      const LearnableSums sums{row, scale_sums.data() + part * row, clipped_sums.data() + part * row};
      loop(args, sums, numel * part / parts, numel * (part + 1) / parts);
    }
  });
  return {dx, gradient_of(scale, scale_sums, parts, row, channels, nullptr, grad_factor),
          gradient_of(zero_point, clipped_sums, parts, row, channels, &qparams.scale, grad_factor)};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fxquant, CPU, m) {
  m.impl("fake_quantize_learnable_backward", TORCH_BOX(&backward_cpu));
}

}  // namespace fxquant
