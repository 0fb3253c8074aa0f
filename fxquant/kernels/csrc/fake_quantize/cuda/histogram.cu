#include "fake_quantize/histogram.h"

#include <tuple>

#include "cuda/count.h"
#include "fake_quantize/cuda/extremes.h"

namespace fxquant {
namespace {

// The range of a row: that of the elements and that before, of which a state that was loaded may hold NaN. Nothing is
// read on the host, which would wait for the GPU.
struct Widen {
  const float* old_low;
  const float* old_high;
  float* low;
  float* high;
  int64_t* nonfinite;  // of all rows

  FXQ_MEMBER void operator()(int64_t row, const Extremes& extremes) const {
    const Range now = extremes.range();
    low[row] = old_low[row] < now.low ? old_low[row] : now.low;
    high[row] = old_high[row] > now.high ? old_high[row] : now.high;
    if (extremes.nonfinite > 0) add_to(nonfinite, extremes.nonfinite);
  }
};

template <typename T>
struct CountValues {
  struct Row {
    BinWindow window;
    BinWindow before;
    float inverse;
  };

  const T* x;
  Layout layout;  // rows are its channels
  int64_t rows;
  int64_t bins;
  const int64_t* old_counts;
  const float* old_low;
  const float* old_high;
  const float* low;
  const float* high;
  int64_t* counts;

  static constexpr int kPack = kPackBytes / sizeof(T);
  Stretches stretches() const { return Stretches(layout, kPack, starts_pack<kPack>(x)); }

  FXQ_MEMBER Row row(int64_t r) const {
    const BinWindow window = window_of(low[r], high[r], bins);
    return {window, window_of(old_low[r], old_high[r], bins), inverse_width(window.exponent)};
  }

  template <int N, typename Count>
  FXQ_MEMBER void add(const Row& row, int64_t i, const Count& count) const {
    const Pack<T, N> in = load_pack<N>(x + i);
    for (int j = 0; j < N; ++j) {
      const float value = narrowed(in.at[j]);
      if (is_finite(value)) count(bin_of(value, row.inverse) - row.window.first);
    }
  }

  FXQ_MEMBER void carry(const Row& row, int64_t r, int64_t b) const {
    const int64_t old = old_counts[r * bins + b];
    const int64_t to = rebinned_index(b, row.before, row.window);
    // Clamped, since counts and range of a state that was loaded may not belong together.
    if (old != 0) add_to(counts + r * bins + (to < 0 ? 0 : to < bins ? to : bins - 1), old);
  }
};

struct Launch {
  const Histogram& h;

  template <typename T>
  void go() const {
    const T* x = static_cast<const T*>(h.x.const_data_ptr());
    const Layout layout{1, h.rows, h.length()};
    const float* old_low = h.old_low.const_data_ptr<float>();
    const float* old_high = h.old_high.const_data_ptr<float>();
    float* low = h.low.mutable_data_ptr<float>();
    float* high = h.high.mutable_data_ptr<float>();
    reduce_channels(h.x, MeasureExtremes<T>{x}, layout,
                    Widen{old_low, old_high, low, high, h.nonfinite.mutable_data_ptr<int64_t>()});
    count_bins(h.x, CountValues<T>{x, layout, h.rows, h.bins, h.old_counts.const_data_ptr<int64_t>(), old_low, old_high,
                                   low, high, h.counts.mutable_data_ptr<int64_t>()});
  }
};

std::tuple<Tensor, Tensor, Tensor, Tensor> histogram_cuda(const HistogramCall& call) {
  const Histogram h(call);
  with_float(h.type, Launch{h});
  return {h.counts, h.low, h.high, h.nonfinite};
}

}  // namespace

FXQ_CUDA_LIBRARY(m) { m.impl("histogram", FXQ_KERNEL(histogram_cuda)); }

}  // namespace fxquant
