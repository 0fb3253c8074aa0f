// The smallest and largest finite values of each channel, and how many are not finite.
#pragma once
#include "cuda/numbers.h"
#include "cuda/reduce.h"
#include "math/histogram.h"
#include "math/qparams.h"

namespace fxquant {

struct Extremes {
  int32_t low;  // keys; low > high: there is no finite value
  int32_t high;
  int64_t nonfinite;

  FXQ_MEMBER Range range() const { return range_of_keys(low, high); }
};

template <typename T>
FXQ_MEMBER float narrowed(const T& x) {
  return static_cast<float>(Number<T>::load(x));
}

template <typename T>
struct MeasureExtremes {
  using Value = Extremes;
  struct Channel {};
  const T* x;

  static constexpr int kPack = kPackBytes / sizeof(T);
  bool aligned() const { return starts_pack<kPack>(x); }

  static FXQ_MEMBER Extremes nothing() { return {INT32_MAX, INT32_MIN, 0}; }
  static FXQ_MEMBER Extremes sum(const Extremes& a, const Extremes& b) {
    return {a.low < b.low ? a.low : b.low, a.high > b.high ? a.high : b.high, a.nonfinite + b.nonfinite};
  }

  FXQ_MEMBER Channel channel(int64_t) const { return {}; }

  template <int N>
  FXQ_MEMBER void add(const Channel&, int64_t i, Extremes& extremes) const {
    const Pack<T, N> in = load_pack<N>(x + i);
    for (int j = 0; j < N; ++j) {
      const float value = narrowed(in.at[j]);
      const int32_t key = key_of(value + 0.0f);  // -0.0 becomes 0.0
      const bool finite = is_finite(value);
      extremes.low = finite && key < extremes.low ? key : extremes.low;
      extremes.high = finite && key > extremes.high ? key : extremes.high;
      extremes.nonfinite += !finite;
    }
  }
};

}  // namespace fxquant
