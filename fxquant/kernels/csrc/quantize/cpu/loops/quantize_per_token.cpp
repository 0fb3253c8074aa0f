// Quantizes rows that lie one after the other, [rows][columns], each by its own range:
//
//   for row:                                 # parallel
//       for column: smallest and largest key # a row with infinities or NaN is read again, without them
//       scale, zero point
//       for column: round, clamp, store      # the row is in the cache by now
//
// A long row that has all threads for itself, a whole tensor, is two loops:
//
//   for part of the row:                     # parallel
//       for value: smallest and largest key
//   for part of the row:                     # parallel
//       scale, zero point, of the keys of all parts
//       for value: round, clamp, store
#include "quantize/cpu/loops/quantize_per_token.h"

#include "fake_quantize/cpu/loops/extremes.h"
#include "quantize/cpu/loops/quantize_run.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

// The smallest and the largest finite value; low > high: there is none.
struct Keys {
  int32_t low = kNoLow;
  int32_t high = kNoHigh;
};

template <typename T>
Keys keys_of(const T* x, int64_t count) {
  Keys keys;
  ChannelExtremes extremes{&keys.low, &keys.high, 0};
  take_extremes(x, count, false, 0, false, extremes);
  if (!finite_keys(keys.low, keys.high)) {
    keys = {};
    take_extremes(x, count, false, 0, true, extremes);
  }
  return keys;
}

// Real is the type that T is computed in.
template <typename T, typename Real, typename Q>
void quantize_by(const T* x, Q* q, int64_t count, const ChosenQParams& chosen, const QParamsOptions& choice) {
  const Real scale = chosen.scale;
  quantize_run(x, q, count,
               Affine<Real>{scale, Real{1} / scale, static_cast<Real>(chosen.zero_point),
                            static_cast<Real>(choice.quant_min), static_cast<Real>(choice.quant_max)});
}

struct Rows {
  template <typename T, typename Real, typename Q>
  static void go(const QuantizePerTokenArgs& args, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* x = static_cast<const T*>(args.x) + row * args.columns;
      const Keys keys = keys_of(x, args.columns);
      const ChosenQParams chosen = choose_qparams(range_of_keys(keys.low, keys.high), args.choice);
      args.scale[row] = chosen.scale;
      args.zero_point[row] = chosen.zero_point;
      quantize_by<T, Real>(x, static_cast<Q*>(args.q) + row * args.columns, args.columns, chosen, args.choice);
    }
  }
};

struct MeasuredParts {
  template <typename T, typename Real, typename Q>
  static void go(const QuantizePartsArgs& args, int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      const int64_t first = args.begin_of(part);
      const Keys keys = keys_of(static_cast<const T*>(args.row.x) + first, args.begin_of(part + 1) - first);
      args.keys[2 * part] = keys.low;
      args.keys[2 * part + 1] = keys.high;
    }
  }
};

struct QuantizedParts {
  template <typename T, typename Real, typename Q>
  static void go(const QuantizePartsArgs& args, int64_t begin, int64_t end) {
    Keys all;
    for (int64_t part = 0; part < args.parts; ++part) {
      all.low = args.keys[2 * part] < all.low ? args.keys[2 * part] : all.low;
      all.high = args.keys[2 * part + 1] > all.high ? args.keys[2 * part + 1] : all.high;
    }
    const ChosenQParams chosen = choose_qparams(range_of_keys(all.low, all.high), args.row.choice);
    if (begin == 0) {
      *args.row.scale = chosen.scale;
      *args.row.zero_point = chosen.zero_point;
    }
    const int64_t first = args.begin_of(begin);
    quantize_by<T, Real>(static_cast<const T*>(args.row.x) + first, static_cast<Q*>(args.row.q) + first,
                         args.begin_of(end) - first, chosen, args.row.choice);
  }
};

template <typename F, typename Q, typename Args>
void with_source(Float type, const Args& args, int64_t begin, int64_t end) {
  switch (type) {
    case Float::kFloat: return F::template go<float, float, Q>(args, begin, end);
    case Float::kDouble: return F::template go<double, double, Q>(args, begin, end);
    case Float::kHalf: return F::template go<Half, float, Q>(args, begin, end);
    case Float::kBFloat16: return F::template go<BFloat16, float, Q>(args, begin, end);
  }
}

template <typename F, typename Args>
void with_types(const QuantizePerTokenArgs& types, const Args& args, int64_t begin, int64_t end) {
  types.to_signed ? with_source<F, int8_t>(types.type, args, begin, end)
                  : with_source<F, uint8_t>(types.type, args, begin, end);
}

}  // namespace

void quantize_per_token_loop(const QuantizePerTokenArgs& args, int64_t begin, int64_t end) {
  with_types<Rows>(args, args, begin, end);
}

void measure_parts_loop(const QuantizePartsArgs& args, int64_t begin, int64_t end) {
  with_types<MeasuredParts>(args.row, args, begin, end);
}

void quantize_parts_loop(const QuantizePartsArgs& args, int64_t begin, int64_t end) {
  with_types<QuantizedParts>(args.row, args, begin, end);
}

}  // namespace FXQ_ISA
}  // namespace fxquant
