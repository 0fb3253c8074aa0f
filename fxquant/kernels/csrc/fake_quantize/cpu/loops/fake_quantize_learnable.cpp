// Backward pass of fake quantization with learned qparams: the gradient of x, and sums for those of scale and zero point.
//
// A dense tensor is seen as [outer, channels, inner] in the order of its memory (common/layout.h). A task is a part of its
// elements, and has sums of its own, so that the result does not depend on threads.
//
//   for part in tasks:                           # in parallel
//       for stretch of one channel, or row of channels side by side:
//           for block of kBlock elements:        # stays in the L1 cache
//               for element: dx, and two summands in the dtype of the computation
//               add the summands to float64 sums # in kSumLanes lanes (sums.h), or channel by channel
//
// Elements are computed and summed in two loops, since one loop of both does not vectorise. bfloat16 is taken in pairs.
#include "fake_quantize/cpu/loops/fake_quantize_learnable.h"

#include "cpu/loops/rows.h"
#include "fake_quantize/cpu/loops/pairs.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

// Computes dx and the summands of each element of one block. G is ChannelQParams, or TensorQParams for a stretch of one
// channel.
template <typename Real, typename G>
FXQ_ONE_LOOP void elements(const Real* FXQ_RESTRICT grad, const Real* FXQ_RESTRICT x, Real* FXQ_RESTRICT dx,
                           Real* FXQ_RESTRICT scale, Real* FXQ_RESTRICT clipped, int64_t count, const G g) {
  FXQ_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) {
    const Affine<Real> a = g.at(i);
    const Real q = round_to_quantized(x[i], a);
    const bool passes = inside(q, a);
    scale[i] = grad[i] * slope_of_scale(x[i], q, a);
    dx[i] = passes ? grad[i] : Real{0};
    clipped[i] = passes ? Real{0} : grad[i];
  }
}

// Does the same for kColumns columns of rows that are `row_size` elements long. Their qparams stay in registers.
FXQ_ONE_LOOP void run_columns(const float* FXQ_RESTRICT grad, const float* FXQ_RESTRICT x, float* FXQ_RESTRICT dx,
                              float* FXQ_RESTRICT scale, float* FXQ_RESTRICT clipped, int64_t rows, int64_t row_size,
                              const ChannelQParams<float> g) {
  for (int64_t end = rows * row_size; end > 0; end -= row_size) {
    FXQ_INDEPENDENT
    for (int64_t i = 0; i < kColumns; ++i) {
      const Affine<float> a = g.at(i);
      const float q = round_to_quantized(x[i], a);
      const bool passes = inside(q, a);
      scale[i] = grad[i] * slope_of_scale(x[i], q, a);
      dx[i] = passes ? grad[i] : 0.0f;
      clipped[i] = passes ? 0.0f : grad[i];
    }
    grad += row_size, x += row_size, dx += row_size, scale += row_size, clipped += row_size;
  }
}

template <Float type, typename G>
void elements(const Short<type>* grad, const Short<type>* x, Short<type>* dx, float* scale, float* clipped,
              int64_t count, const G g) {
  float real_grad[kBlock];
  float real_x[kBlock];
  float result[kBlock];
  widen(grad, real_grad, count);
  widen(x, real_x, count);
  elements(real_grad, real_x, result, scale, clipped, count, g);
  narrow(result, dx, count);
}

// The summands of a pair are stored side by side or apart. Each way has room for kBlock elements.
constexpr int64_t kApart = kBlock / 2 + kSumLanes;
static_assert(kApart % kSumLanes == 0, "whole rounds of the lanes");

struct SideBySide {  // in the order of the elements
  static constexpr int64_t first(int64_t p) { return 2 * p; }
  static constexpr int64_t second(int64_t p) { return 2 * p + 1; }
};

struct Apart {  // all first ones, then all second ones: needs no shuffle, for one channel, where any order will do
  static constexpr int64_t first(int64_t p) { return p; }
  static constexpr int64_t second(int64_t p) { return kApart + p; }
};

// The gradients and the summands of a pair.
struct PairGradients {
  Pair scale;
  Pair clipped;
  uint32_t dx;
};

inline PairGradients gradients_of(uint32_t grad, Pair value, const Affine<float>& a, const Affine<float>& b) {
  const Pair incoming = pair_of(grad);
  const float lower = round_to_quantized(value.first, a);
  const float upper = round_to_quantized(value.second, b);
  const bool lower_passes = inside(lower, a);
  const bool upper_passes = inside(upper, b);
  return {{incoming.first * slope_of_scale(value.first, lower, a),
           incoming.second * slope_of_scale(value.second, upper, b)},
          {lower_passes ? 0.0f : incoming.first, upper_passes ? 0.0f : incoming.second},
          grad & ((lower_passes ? 0xffffu : 0u) | (upper_passes ? 0xffff0000u : 0u))};
}

// `first` and `second` are the qparams of the first and of the second element of each pair.
template <typename Places, typename G>
struct Pairs {
  const BFloat16* grad;
  const BFloat16* x;
  BFloat16* dx;
  float* scale;
  float* clipped;
  G first;
  G second;

  void operator()(int64_t p) const {
    const PairGradients of =
        gradients_of(word_at(grad + 2 * p), pair_of(word_at(x + 2 * p)), first.at(p), second.at(p));
    scale[Places::first(p)] = of.scale.first;
    scale[Places::second(p)] = of.scale.second;
    clipped[Places::first(p)] = of.clipped.first;
    clipped[Places::second(p)] = of.clipped.second;
    store_word(of.dx, dx + 2 * p);
  }
};

template <typename Places, typename G>
FXQ_ONE_LOOP void run_pairs(const BFloat16* grad, const BFloat16* x, BFloat16* dx, float* scale, float* clipped,
                            int64_t pairs, const G first, const G second) {
  for_each_in_row(pairs, Pairs<Places, G>{grad, x, dx, scale, clipped, first, second});
}

// Does the same for kColumns columns of rows that are `row_size` elements long. Their qparams stay in registers.
FXQ_ONE_LOOP void run_pair_columns(const BFloat16* FXQ_RESTRICT grad, const BFloat16* FXQ_RESTRICT x,
                                   BFloat16* FXQ_RESTRICT dx, float* FXQ_RESTRICT scale, float* FXQ_RESTRICT clipped,
                                   int64_t rows, int64_t row_size, const ChannelQParams<float> first,
                                   const ChannelQParams<float> second) {
  for (int64_t end = rows * row_size; end > 0; end -= row_size) {
    FXQ_INDEPENDENT
    for (int64_t p = 0; p < kColumns / 2; ++p) {
      const PairGradients of =
          gradients_of(word_at(grad + 2 * p), pair_of(word_at(x + 2 * p)), first.at(p), second.at(p));
      scale[2 * p] = of.scale.first;
      scale[2 * p + 1] = of.scale.second;
      clipped[2 * p] = of.clipped.first;
      clipped[2 * p + 1] = of.clipped.second;
      store_word(of.dx, dx + 2 * p);
    }
    grad += row_size, x += row_size, dx += row_size, scale += row_size, clipped += row_size;
  }
}

template <typename Places, typename G>
void elements(const BFloat16* grad, const BFloat16* x, BFloat16* dx, float* scale, float* clipped, int64_t count,
              const G first, const G second, const Affine<float>& of_last) {
  run_pairs<Places>(grad, x, dx, scale, clipped, count / 2, first, second);
  if (count % 2 != 0) {
    const int64_t last = count - 1;
    const int64_t place = Places::first(count / 2);
    const float real_grad = to_float(grad[last]);
    const float real_x = to_float(x[last]);
    float result;
    elements(&real_grad, &real_x, &result, scale + place, clipped + place, 1, TensorQParams<float>{of_last});
    from_float(result, dx[last]);
  }
}

// Takes a row of channels side by side, from channel c on.
void row(const LearnableBackwardArgs& args, const ChannelQParams<float>& qparams, const float* grad, const float* x,
         float* dx, float* scale, float* clipped, int64_t count, int64_t c) {
  const int64_t row_size = args.channels;
  if (c % row_size != 0 || row_size % kColumns != 0 || count % row_size != 0) {
    return elements(grad, x, dx, scale, clipped, count, qparams.from(c));
  }
  for (int64_t i = 0; i < row_size; i += kColumns) {
    run_columns(grad + i, x + i, dx + i, scale + i, clipped + i, count / row_size, row_size, qparams.from(i));
  }
}

template <typename T, typename Real>
void row(const LearnableBackwardArgs&, const ChannelQParams<Real>& qparams, const T* grad, const T* x, T* dx,
         Real* scale, Real* clipped, int64_t count, int64_t c) {
  elements(grad, x, dx, scale, clipped, count, qparams.from(c));
}

void row(const LearnableBackwardArgs& args, const ChannelQParams<float>&, const BFloat16* grad, const BFloat16* x,
         BFloat16* dx, float* scale, float* clipped, int64_t count, int64_t c) {
  const PairedQParams<float>& g = args.paired;
  const int64_t row_size = args.channels;
  if (c % row_size == 0 && row_size % kColumns == 0 && count % row_size == 0) {
    for (int64_t i = 0; i < row_size; i += kColumns) {
      run_pair_columns(grad + i, x + i, dx + i, scale + i, clipped + i, count / row_size, row_size, g.even.from(i / 2),
                       g.odd.from(i / 2));
    }
    return;
  }
  elements<SideBySide>(grad, x, dx, scale, clipped, count, g.every_second_from(c), g.every_second_from(c + 1),
                       g.at(c + count - 1));
}

template <typename Real>
void add_each(const Real* FXQ_RESTRICT values, int64_t count, double* FXQ_RESTRICT sums) {
  for (int64_t i = 0; i < count; ++i) sums[i] += static_cast<double>(values[i]);
}

// The summands of one block, with room for either way of storing pairs.
template <typename Real>
struct Summands {
  Real scale[2 * kApart];
  Real clipped[2 * kApart];
};

// Adds summands to the sums of channels side by side, which repeat after sums.period. The first summand belongs to channel
// `first`.
template <typename Real>
void add_channels(const Summands<Real>& of, int64_t count, int64_t first, const LearnableSums& sums) {
  const int64_t period = sums.period;
  if (first == 0 && count % period == 0 && period % kSumLanes == 0) {
    for (int64_t c = 0; c < period; c += kSumLanes) {
      add_both_to_lanes(of.scale + c, of.clipped + c, count / period, period, sums.scale + c, sums.clipped + c);
    }
    return;
  }
  for (int64_t i = 0; i < count; first = 0) {
    const int64_t n = period - first < count - i ? period - first : count - i;
    add_each(of.scale + i, n, sums.scale + first);
    add_each(of.clipped + i, n, sums.clipped + first);
    i += n;
  }
}

// Adds up the summands of one channel, block by block.
template <typename Real>
struct BlockSums {
  double scale_lanes[kSumLanes] = {};
  double clipped_lanes[kSumLanes] = {};
  Summands<Real> of;

  template <typename T>
  void add(const T* grad, const T* x, T* dx, int64_t count, const Affine<Real>& a) {
    elements(grad, x, dx, of.scale, of.clipped, count, TensorQParams<Real>{a});
    add_from(0, count);
  }

  void add(const BFloat16* grad, const BFloat16* x, BFloat16* dx, int64_t count, const Affine<float>& a) {
    const TensorQParams<float> g{a};
    elements<Apart>(grad, x, dx, of.scale, of.clipped, count, g, g, a);
    add_from(0, count - count / 2);
    add_from(kApart, count / 2);
  }

  void add_from(int64_t place, int64_t count) {
    Real* scale = of.scale + place;
    Real* clipped = of.clipped + place;
    fill_last_round(scale, count);
    add_both_to_lanes(scale, clipped, fill_last_round(clipped, count), kSumLanes, scale_lanes, clipped_lanes);
  }

  void store(const LearnableSums& sums, int64_t channel) const {
    sums.scale[channel] += horizontal_sum(scale_lanes);
    sums.clipped[channel] += horizontal_sum(clipped_lanes);
  }
};

template <typename T, typename Real>
void stretch(const T* grad, const T* x, T* dx, int64_t count, const Affine<Real>& a, const LearnableSums& sums,
             int64_t channel) {
  BlockSums<Real> blocks;
  for_each_block(count, [&](int64_t i, int64_t n) { blocks.add(grad + i, x + i, dx + i, n, a); });
  blocks.store(sums, channel);
}

template <typename T, typename Real>
void channels(const LearnableBackwardArgs& args, const ChannelQParams<Real>& qparams, const T* grad, const T* x, T* dx,
              int64_t count, const LearnableSums& sums, int64_t channel) {
  Summands<Real> of;
  for_each_block(count, [&](int64_t i, int64_t n) {
    row(args, qparams, grad + i, x + i, dx + i, of.scale, of.clipped, n, channel + i);
    add_channels(of, n, (channel + i) % sums.period, sums);
  });
}

template <typename T, typename Real>
void backward_range(const LearnableBackwardArgs& args, const ChannelQParams<Real>& qparams, const LearnableSums& sums,
                    int64_t begin, int64_t end) {
  const T* grad = static_cast<const T*>(args.grad);
  const T* x = static_cast<const T*>(args.x);
  T* dx = static_cast<T*>(args.dx);
  for_each_channel(
      args.layout, begin, end,
      [&](int64_t i, int64_t n, int64_t c) { stretch(grad + i, x + i, dx + i, n, qparams.at(c), sums, c); },
      [&](int64_t i, int64_t n, int64_t c) { channels(args, qparams, grad + i, x + i, dx + i, n, sums, c); });
}

}  // namespace

void fake_quantize_learnable_loop(const LearnableBackwardArgs& args, const LearnableSums& sums, int64_t begin,
                                  int64_t end) {
  switch (args.type) {
    case Float::kFloat: return backward_range<float>(args, args.qparams, sums, begin, end);
    case Float::kDouble: return backward_range<double>(args, args.double_qparams, sums, begin, end);
    case Float::kHalf: return backward_range<Half>(args, args.qparams, sums, begin, end);
    case Float::kBFloat16: return backward_range<BFloat16>(args, args.qparams, sums, begin, end);
  }
}

}  // namespace FXQ_ISA
}  // namespace fxquant
