#include "fake_quantize/moving_average.h"

#include <tuple>

#include "fake_quantize/cuda/extremes.h"

namespace fxquant {
namespace {

struct Finish {
  const float* before_low;
  const float* before_high;
  QParamsOptions choice;
  float* low;
  float* high;
  float* scale;
  int32_t* zero_point;
  int64_t* nonfinite;  // of all channels

  FXQ_MEMBER void operator()(int64_t c, const Extremes& extremes) const {
    const Range now = blend({before_low[c], before_high[c]}, extremes.range(), choice.averaging);
    const ChosenQParams chosen = choose_qparams(now, choice);
    low[c] = now.low;
    high[c] = now.high;
    scale[c] = chosen.scale;
    zero_point[c] = chosen.zero_point;
    if (extremes.nonfinite > 0) add_to(nonfinite, extremes.nonfinite);
  }
};

struct Call {
  const Tensor& x;
  Layout layout;
  Finish finish;

  template <typename T>
  void go() const {
    reduce_channels(x, MeasureExtremes<T>{static_cast<const T*>(x.const_data_ptr())}, layout, finish);
  }
};

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> moving_average_qparams_cuda(
    const MovingAverageQParamsCall& call) {
  const MovingAverage m(call);
  const Tensor x = dense(call.x);
  MovingAverage::Results results = m.results();
  torch::stable::zero_(results.nonfinite);
  const Finish finish{m.running_min.const_data_ptr<float>(),     m.running_max.const_data_ptr<float>(),
                      m.choice,                                  results.low.mutable_data_ptr<float>(),
                      results.high.mutable_data_ptr<float>(),       results.scale.mutable_data_ptr<float>(),
                      results.zero_point.mutable_data_ptr<int32_t>(), results.nonfinite.mutable_data_ptr<int64_t>()};
  with_float(m.type, Call{x, layout_of(x, m.axis), finish});
  return {results.low, results.high, results.scale, results.zero_point, results.nonfinite};
}

}  // namespace

FXQ_CUDA_LIBRARY(m) {
  m.impl("moving_average_qparams", FXQ_KERNEL(moving_average_qparams_cuda));
}

}  // namespace fxquant
