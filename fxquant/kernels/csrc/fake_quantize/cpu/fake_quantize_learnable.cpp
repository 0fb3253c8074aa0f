#include "fake_quantize/fake_quantize_learnable.h"

#include <algorithm>
#include <tuple>
#include <vector>

#include "cpu/qparams.h"
#include "fake_quantize/cpu/loops/fake_quantize_learnable.h"

namespace fxquant {
namespace {

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

// Sums of one row of channels; a row may be several times the channels of the qparams.
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

std::tuple<Tensor, Tensor, Tensor> fake_quantize_learnable_backward_cpu(const FakeQuantizeLearnableBackwardCall& call) {
  const LearnableBackward b(call);
  QParams qparams(b.kOp, call.input, call.scale, call.zero_point, b.channels);
  qparams.check_zero_points(b.kOp, call.quant_min, call.quant_max);
  Layout layout = layout_of(b.x, b.axis);
  qparams.lengthen_rows(layout);
  const QParamsOfEitherType arrays(b.type, qparams, call.quant_min, call.quant_max);
  const PairedQParamsArrays paired_arrays(b.type, layout, qparams, call.quant_min, call.quant_max);
  const LearnableBackwardArgs args{b.type,
                                   b.grad.const_data_ptr(),
                                   b.x.const_data_ptr(),
                                   b.dx.mutable_data_ptr(),
                                   layout,
                                   b.channels,
                                   arrays.floats.view(),
                                   arrays.doubles.view(),
                                   paired_arrays.view()};
  const int64_t row = period_of(b.channels, static_cast<int64_t>(qparams.scale.size()));
  const int64_t numel = b.x.numel();
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
  return {b.dx, gradient_of(call.scale, scale_sums, parts, row, b.channels, nullptr, call.grad_factor),
          gradient_of(call.zero_point, clipped_sums, parts, row, b.channels, &qparams.scale, call.grad_factor)};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fxquant, CPU, m) {
  m.impl("fake_quantize_learnable_backward", FXQ_KERNEL(fake_quantize_learnable_backward_cpu));
}

}  // namespace fxquant
