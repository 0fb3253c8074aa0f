// Quantizes rows that lie one after the other, [rows][columns], each by its own range:
//
//   for row:                                 # parallel
//       for column: smallest and largest key # a row with infinities or NaN is read again, without them
//       scale, zero point
//       for column: round, clamp, store      # the row is in the cache by now
#include "quantize/cpu/loops/quantize_per_token.h"

#include "fake_quantize/cpu/loops/extremes.h"
#include "quantize/cpu/loops/quantize_run.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

template <typename T>
Range range_of(const T* x, int64_t count) {
  int32_t low = kNoLow, high = kNoHigh;
  ChannelExtremes extremes{&low, &high, 0};
  take_extremes(x, count, false, 0, false, extremes);
  if (!finite_keys(low, high)) {
    low = kNoLow;
    high = kNoHigh;
    take_extremes(x, count, false, 0, true, extremes);
  }
  return range_of_keys(low, high);
}

// Real is the type that T is computed in.
template <typename T, typename Real, typename Q>
void quantize_rows(const QuantizePerTokenArgs& args, int64_t begin, int64_t end) {
  const Real low = static_cast<Real>(args.choice.quant_min), high = static_cast<Real>(args.choice.quant_max);
  for (int64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(args.x) + row * args.columns;
    const ChosenQParams chosen = choose_qparams(range_of(x, args.columns), args.choice);
    args.scale[row] = chosen.scale;
    args.zero_point[row] = chosen.zero_point;
    const Real scale = chosen.scale;
    const Affine<Real> affine{scale, Real{1} / scale, static_cast<Real>(chosen.zero_point), low, high};
    quantize_run(x, static_cast<Q*>(args.q) + row * args.columns, args.columns, affine);
  }
}

template <typename Q>
void with_source(const QuantizePerTokenArgs& args, int64_t begin, int64_t end) {
  switch (args.type) {
    case Float::kFloat: return quantize_rows<float, float, Q>(args, begin, end);
    case Float::kDouble: return quantize_rows<double, double, Q>(args, begin, end);
    case Float::kHalf: return quantize_rows<Half, float, Q>(args, begin, end);
    case Float::kBFloat16: return quantize_rows<BFloat16, float, Q>(args, begin, end);
  }
}

}  // namespace

void quantize_per_token_loop(const QuantizePerTokenArgs& args, int64_t begin, int64_t end) {
  args.to_signed ? with_source<int8_t>(args, begin, end) : with_source<uint8_t>(args, begin, end);
}

}  // namespace FXQ_ISA
}  // namespace fxquant
