#include "fake_quantize/moving_average.h"

#include <algorithm>
#include <tuple>
#include <vector>

#include "fake_quantize/cpu/loops/moving_average_qparams.h"

namespace fxquant {
namespace {

// Keys of the extremes of each channel, found by several threads in parts of their own.
struct Extremes {
  std::vector<int32_t> low;
  std::vector<int32_t> high;
  int64_t nonfinite = 0;

  Extremes(const ExtremesArgs& args, bool finite_only) {
    const int64_t channels = args.layout.channels;
    const int64_t numel = args.layout.numel();
    constexpr int64_t kMostParts = 64;
    const int64_t parts = std::max<int64_t>(1, std::min({kMostParts, numel / kGrain, numel / (4 * channels)}));
    std::vector<int32_t> lows(parts * channels, kNoLow);
    std::vector<int32_t> highs(parts * channels, kNoHigh);
    std::vector<int64_t> counts(parts, 0);
    const auto loop = FXQ_LOOP(extremes_loop);
    torch::stable::parallel_for(0, parts, 1, [&](int64_t first, int64_t last) {
      for (int64_t part = first; part < last; ++part) {
        ChannelExtremes found{lows.data() + part * channels, highs.data() + part * channels, 0};
        loop(args, found, finite_only, numel * part / parts, numel * (part + 1) / parts);
        counts[part] = found.nonfinite;
      }
    });
    low.assign(lows.begin(), lows.begin() + channels);
    high.assign(highs.begin(), highs.begin() + channels);
    for (int64_t part = 0; part < parts; ++part) {
      nonfinite += counts[part];
      for (int64_t c = 0; c < channels; ++c) {
        low[c] = std::min(low[c], lows[part * channels + c]);
        high[c] = std::max(high[c], highs[part * channels + c]);
      }
    }
  }

  bool finite() const {
    return finite_keys(*std::min_element(low.begin(), low.end()), *std::max_element(high.begin(), high.end()));
  }
};

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> moving_average_qparams_cpu(
    const MovingAverageQParamsCall& call) {
  const MovingAverage m(call);
  const Tensor x = dense(call.x);
  const ExtremesArgs args{m.type, x.const_data_ptr(), layout_of(x, m.axis)};
  Extremes found(args, false);
  if (!found.finite()) found = Extremes(args, true);
  const float* before_low = m.running_min.const_data_ptr<float>();
  const float* before_high = m.running_max.const_data_ptr<float>();
  const MovingAverage::Results results = m.results();
  *results.nonfinite.mutable_data_ptr<int64_t>() = found.nonfinite;
  for (int64_t c = 0; c < m.channels; ++c) {
    const Range batch = range_of_keys(found.low[c], found.high[c]);
    const Range now = blend({before_low[c], before_high[c]}, batch, m.choice.averaging);
    const ChosenQParams chosen = choose_qparams(now, m.choice);
    results.low.mutable_data_ptr<float>()[c] = now.low;
    results.high.mutable_data_ptr<float>()[c] = now.high;
    results.scale.mutable_data_ptr<float>()[c] = chosen.scale;
    results.zero_point.mutable_data_ptr<int32_t>()[c] = chosen.zero_point;
  }
  return {results.low, results.high, results.scale, results.zero_point, results.nonfinite};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fxquant, CPU, m) {
  m.impl("moving_average_qparams", FXQ_KERNEL(moving_average_qparams_cpu));
}

}  // namespace fxquant
