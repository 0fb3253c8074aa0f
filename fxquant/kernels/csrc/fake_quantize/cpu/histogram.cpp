#include "fake_quantize/histogram.h"

#include <mutex>
#include <tuple>

#include "fake_quantize/cpu/loops/histogram.h"
#include "math/modulo.h"

namespace fxquant {
namespace {

// The counts of one row, which tasks add to one after the other. The order does not matter: bins merge exactly.
struct Row {
  int64_t* counts;
  float* low;
  float* high;
  int64_t bins;

  template <typename Count>
  void add(const Count* added, const BinWindow& from, float low_, float high_) {
    const BinWindow before = window_of(*low, *high, bins);
    if (low_ < *low) *low = low_;
    if (high_ > *high) *high = high_;
    const BinWindow now = window_of(*low, *high, bins);
    if (now.exponent != before.exponent || now.first != before.first) {
      const std::vector<int64_t> old(counts, counts + bins);
      std::fill(counts, counts + bins, 0);
      accumulate(old.data(), before, now);
    }
    accumulate(added, from, now);
  }

 private:
  template <typename Count>
  void accumulate(const Count* added, const BinWindow& from, const BinWindow& to) {
    for (int64_t b = 0; b < bins; ++b) {
      // Clamped, since counts and range of a state that was loaded may not belong together.
      if (added[b] == 0) continue;
      int64_t& count = counts[std::clamp<int64_t>(rebinned_index(b, from, to), 0, bins - 1)];
      count = add_modulo(count, static_cast<int64_t>(added[b]));
    }
  }
};

std::tuple<Tensor, Tensor, Tensor, Tensor> histogram_cpu(const HistogramCall& call) {
  const Histogram h(call);
  const float* old_low = h.old_low.const_data_ptr<float>();
  const float* old_high = h.old_high.const_data_ptr<float>();
  std::copy_n(old_low, h.rows, h.low.mutable_data_ptr<float>());
  std::copy_n(old_high, h.rows, h.high.mutable_data_ptr<float>());
  std::copy_n(h.old_counts.const_data_ptr<int64_t>(), h.rows * h.bins, h.counts.mutable_data_ptr<int64_t>());

  const int64_t length = h.length();
  const auto loop = FXQ_LOOP(histogram_loop);
  std::mutex adding;
  const auto count = [&](std::vector<uint16_t>& replicas, std::vector<uint32_t>& space, int64_t row, int64_t begin,
                         int64_t end) {
    std::fill_n(space.begin(), h.bins, 0);
    constexpr float kInf = std::numeric_limits<float>::infinity();
    BinCounts task{h.x.const_data_ptr(), h.type, h.bins, replicas.data(), space.data(), space.data() + h.bins, 0,
                   window_of(kInf, -kInf, h.bins), kInf, -kInf, 0};
    loop(task, begin, end);
    const std::lock_guard<std::mutex> lock(adding);
    *h.nonfinite.mutable_data_ptr<int64_t>() += task.nonfinite;
    Row total{h.counts.mutable_data_ptr<int64_t>() + row * h.bins, h.low.mutable_data_ptr<float>() + row,
                    h.high.mutable_data_ptr<float>() + row, h.bins};
    total.add(task.counts, task.window, task.low, task.high);
  };
  constexpr int64_t kElements = 4 * kGrain;  // a task begins and ends with work on all bins
  torch::stable::parallel_for(0, h.rows * length, kElements, [&](int64_t begin, int64_t end) {
    std::vector<uint16_t> replicas(kReplicas * h.bins);
    std::vector<uint32_t> space(2 * h.bins);
    while (begin < end) {
      const int64_t row = begin / length;
      const int64_t stop = std::min({end, (row + 1) * length, begin + kMostCounted});
      count(replicas, space, row, begin, stop);
      begin = stop;
    }
  });
  return {h.counts, h.low, h.high, h.nonfinite};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fxquant, CPU, m) { m.impl("histogram", FXQ_KERNEL(histogram_cpu)); }

}  // namespace fxquant
