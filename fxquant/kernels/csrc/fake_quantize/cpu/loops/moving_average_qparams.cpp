// The smallest and the largest value of each channel, from which moving averages and qparams follow.
//
// A dense tensor is seen as [outer, channels, inner] in the order of its memory (common/layout.h). A task is a range of its
// elements, with extremes of its own.
//
//   for range of elements in tasks:         # in parallel
//       for stretch of one channel, or row of channels side by side:
//           for element: minimum, maximum   # NaN counts, or only finite values do (extremes.h)
#include "fake_quantize/cpu/loops/moving_average_qparams.h"

#include "fake_quantize/cpu/loops/extremes.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

template <typename T>
void extremes_range(const ExtremesArgs& args, ChannelExtremes& e, bool finite_only, int64_t begin, int64_t end) {
  const T* x = static_cast<const T*>(args.x);
  for_each_channel(
      args.layout, begin, end, [&](int64_t i, int64_t n, int64_t c) { take_extremes(x + i, n, false, c, finite_only, e); },
      [&](int64_t i, int64_t n, int64_t c) { take_extremes(x + i, n, true, c, finite_only, e); });
}

}  // namespace

void extremes_loop(const ExtremesArgs& args, ChannelExtremes& extremes, bool finite_only, int64_t begin, int64_t end) {
  switch (args.type) {
    case Float::kFloat: return extremes_range<float>(args, extremes, finite_only, begin, end);
    case Float::kDouble: return extremes_range<double>(args, extremes, finite_only, begin, end);
    case Float::kHalf: return extremes_range<Half>(args, extremes, finite_only, begin, end);
    case Float::kBFloat16: return extremes_range<BFloat16>(args, extremes, finite_only, begin, end);
  }
}

}  // namespace FXQ_ISA
}  // namespace fxquant
