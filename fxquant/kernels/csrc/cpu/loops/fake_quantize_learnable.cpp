#include "fake_quantize_learnable.h"

#include "pairs.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

// Everything per element of one block; then it is summed, which does not vectorise in one loop with this.
// G: Grids, or OneGrid for a stretch of one channel.
template <typename Real, typename G>
FXQ_ONE_LOOP void elements(const Real* FXQ_RESTRICT grad, const Real* FXQ_RESTRICT x, Real* FXQ_RESTRICT dx,
                           Real* FXQ_RESTRICT scale, Real* FXQ_RESTRICT clipped, int64_t count, const G g) {
  FXQ_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) {
    const Affine<Real> a = g.at(i);
    const Real step = to_grid(x[i], a);
    const bool passes = inside(step, a);
    scale[i] = grad[i] * slope_of_scale(x[i], step, a);
    dx[i] = passes ? grad[i] : Real{0};
    clipped[i] = passes ? Real{0} : grad[i];
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

// first and second: the grids of the first and of the second element of each pair.
template <typename G>
FXQ_ONE_LOOP void pairs(const BFloat16* FXQ_RESTRICT grad, const BFloat16* FXQ_RESTRICT x,
                        BFloat16* FXQ_RESTRICT dx, float* FXQ_RESTRICT scale, float* FXQ_RESTRICT clipped,
                        int64_t count, const G first, const G second) {
  FXQ_INDEPENDENT
  for (int64_t p = 0; p < count; ++p) {
    const uint32_t word = word_at(grad + 2 * p);
    const Pair incoming = pair_of(word);
    const Pair value = pair_of(word_at(x + 2 * p));
    const Affine<float> a = first.at(p);
    const Affine<float> b = second.at(p);
    const float lower = to_grid(value.first, a);
    const float upper = to_grid(value.second, b);
    const bool lower_passes = inside(lower, a);
    const bool upper_passes = inside(upper, b);
    scale[2 * p] = incoming.first * slope_of_scale(value.first, lower, a);
    scale[2 * p + 1] = incoming.second * slope_of_scale(value.second, upper, b);
    clipped[2 * p] = lower_passes ? 0.0f : incoming.first;
    clipped[2 * p + 1] = upper_passes ? 0.0f : incoming.second;
    store_word(word & ((lower_passes ? 0xffffu : 0u) | (upper_passes ? 0xffff0000u : 0u)), dx + 2 * p);
  }
}

template <typename G>
void elements(const BFloat16* grad, const BFloat16* x, BFloat16* dx, float* scale, float* clipped, int64_t count,
              const G first, const G second, const Affine<float>& of_last) {
  pairs(grad, x, dx, scale, clipped, count / 2, first, second);
  if (count % 2 != 0) {
    const int64_t last = count - 1;
    const float real_grad = to_float(grad[last]);
    const float real_x = to_float(x[last]);
    float result;
    elements(&real_grad, &real_x, &result, scale + last, clipped + last, 1, OneGrid<float>{of_last});
    from_float(result, dx[last]);
  }
}

void elements(const BFloat16* grad, const BFloat16* x, BFloat16* dx, float* scale, float* clipped, int64_t count,
              const OneGrid<float> g) {
  elements(grad, x, dx, scale, clipped, count, g, g, g.grid);
}

// Of channels side by side, from c on.
template <typename T, typename Real>
void row(const LearnableBackwardArgs&, const Grids<Real>& grids, const T* grad, const T* x, T* dx, Real* scale,
         Real* clipped, int64_t count, int64_t c) {
  elements(grad, x, dx, scale, clipped, count, grids.from(c));
}

void row(const LearnableBackwardArgs& args, const Grids<float>&, const BFloat16* grad, const BFloat16* x, BFloat16* dx,
         float* scale, float* clipped, int64_t count, int64_t c) {
  const PairedGrids<float>& g = args.paired;
  elements(grad, x, dx, scale, clipped, count, g.every_second_from(c), g.every_second_from(c + 1), g.at(c + count - 1));
}

template <typename Real>
void add_each(const Real* FXQ_RESTRICT values, int64_t count, double* FXQ_RESTRICT sums) {
  for (int64_t i = 0; i < count; ++i) sums[i] += static_cast<double>(values[i]);
}

// Adds to the sums of channels side by side, of which there are `period`. values[0] is of the channel `first`.
template <typename Real>
void add_channels(const Real* values, int64_t count, int64_t first, int64_t period, double* sums) {
  if (first == 0 && count % period == 0 && period % kSumLanes == 0) {
    for (int64_t c = 0; c < period; c += kSumLanes) add_to_lanes(values + c, count / period, period, sums + c);
    return;
  }
  for (int64_t i = 0; i < count; first = 0) {
    const int64_t n = period - first < count - i ? period - first : count - i;
    add_each(values + i, n, sums + first);
    i += n;
  }
}

// Adds up values block by block.
template <typename Real>
struct BlockSums {
  double scale_lanes[kSumLanes] = {};
  double clipped_lanes[kSumLanes] = {};
  Real scale[kBlock];
  Real clipped[kBlock];

  void add(int64_t count) {
    add_block_to_lanes(scale, count, scale_lanes);
    add_block_to_lanes(clipped, count, clipped_lanes);
  }

  void store(const LearnableSums& sums, int64_t channel) const {
    sums.scale[channel] += total(scale_lanes);
    sums.clipped[channel] += total(clipped_lanes);
  }
};

template <typename T, typename Real>
void stretch(const T* grad, const T* x, T* dx, int64_t count, const Affine<Real>& a, const LearnableSums& sums,
             int64_t channel) {
  BlockSums<Real> blocks;
  for_each_block(count, [&](int64_t i, int64_t n) {
    elements(grad + i, x + i, dx + i, blocks.scale, blocks.clipped, n, OneGrid<Real>{a});
    blocks.add(n);
  });
  blocks.store(sums, channel);
}

template <typename T, typename Real>
void channels(const LearnableBackwardArgs& args, const Grids<Real>& grids, const T* grad, const T* x, T* dx,
              int64_t count, const LearnableSums& sums, int64_t channel) {
  Real scale[kBlock];
  Real clipped[kBlock];
  for_each_block(count, [&](int64_t i, int64_t n) {
    row(args, grids, grad + i, x + i, dx + i, scale, clipped, n, channel + i);
    const int64_t first = (channel + i) % sums.period;
    add_channels(scale, n, first, sums.period, sums.scale);
    add_channels(clipped, n, first, sums.period, sums.clipped);
  });
}

template <typename T, typename Real>
void walk(const LearnableBackwardArgs& args, const Grids<Real>& grids, const LearnableSums& sums, int64_t begin,
          int64_t end) {
  const T* grad = static_cast<const T*>(args.grad);
  const T* x = static_cast<const T*>(args.x);
  T* dx = static_cast<T*>(args.dx);
  for_each_channel(
      args.layout, begin, end,
      [&](int64_t i, int64_t n, int64_t c) { stretch(grad + i, x + i, dx + i, n, grids.at(c), sums, c); },
      [&](int64_t i, int64_t n, int64_t c) { channels(args, grids, grad + i, x + i, dx + i, n, sums, c); });
}

}  // namespace

void fake_quantize_learnable_loop(const LearnableBackwardArgs& args, const LearnableSums& sums, int64_t begin,
                                  int64_t end) {
  switch (args.type) {
    case Float::kFloat: return walk<float>(args, args.grids, sums, begin, end);
    case Float::kDouble: return walk<double>(args, args.double_grids, sums, begin, end);
    case Float::kHalf: return walk<Half>(args, args.grids, sums, begin, end);
    case Float::kBFloat16: return walk<BFloat16>(args, args.grids, sums, begin, end);
  }
}

}  // namespace FXQ_ISA
}  // namespace fxquant
