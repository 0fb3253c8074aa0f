#include "fake_quantize_learnable.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

// A sum runs in this many lanes, whatever the instruction set, so that all of them round alike.
constexpr int64_t kLanes = 16;
static_assert(kBlock % kLanes == 0, "blocks are whole rounds of the lanes");

// Everything per element of one block; then it is summed, which does not vectorise in one loop with this.
template <typename Real>
void elements(const Real* FXQ_RESTRICT grad, const Real* FXQ_RESTRICT x, Real* FXQ_RESTRICT dx,
              Real* FXQ_RESTRICT scale, Real* FXQ_RESTRICT clipped, int64_t count, const Affine<Real> a) {
  for (int64_t i = 0; i < count; ++i) {
    const Real step = to_grid(x[i], a);
    const bool passes = inside(step, a);
    scale[i] = grad[i] * slope_of_scale(x[i], step, a);
    dx[i] = passes ? grad[i] : Real{0};
    clipped[i] = passes ? Real{0} : grad[i];
  }
}

template <typename Real>
void add_to_lanes(const Real* FXQ_RESTRICT values, int64_t count, double* FXQ_RESTRICT lanes) {
  for (int64_t i = 0; i < count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += static_cast<double>(values[i + lane]);
  }
}

double total(const double* lanes) {
  double sum = 0;
  for (int64_t lane = 0; lane < kLanes; ++lane) sum += lanes[lane];
  return sum;
}

// Adds up values block by block; those beyond the last whole round of lanes are zeros.
template <typename Real>
struct BlockSums {
  double scale_lanes[kLanes] = {};
  double clipped_lanes[kLanes] = {};
  Real scale[kBlock];
  Real clipped[kBlock];

  void add(int64_t count) {
    int64_t rounded = count;
    for (; rounded % kLanes != 0; ++rounded) scale[rounded] = clipped[rounded] = Real{0};
    add_to_lanes(scale, rounded, scale_lanes);
    add_to_lanes(clipped, rounded, clipped_lanes);
  }

  void store(const LearnableSums& sums, int64_t channel) const {
    sums.scale[channel] += total(scale_lanes);
    sums.clipped[channel] += total(clipped_lanes);
  }
};

template <typename Real>
void stretch(const Real* grad, const Real* x, Real* dx, int64_t count, const Affine<Real>& a,
             const LearnableSums& sums, int64_t channel) {
  BlockSums<Real> blocks;
  for_each_block(count, [&](int64_t i, int64_t n) {
    elements(grad + i, x + i, dx + i, blocks.scale, blocks.clipped, n, a);
    blocks.add(n);
  });
  blocks.store(sums, channel);
}

template <typename Real>
void row(const Real* FXQ_RESTRICT grad, const Real* FXQ_RESTRICT x, Real* FXQ_RESTRICT dx, int64_t count,
         const Grids<Real> g, double* FXQ_RESTRICT scale, double* FXQ_RESTRICT clipped) {
  for (int64_t i = 0; i < count; ++i) {
    const Affine<Real> a = g.at(i);
    const Real step = to_grid(x[i], a);
    const bool passes = inside(step, a);
    const Real of_scale = grad[i] * slope_of_scale(x[i], step, a);
    const Real of_clipped = passes ? Real{0} : grad[i];
    dx[i] = passes ? grad[i] : Real{0};
    scale[i] += static_cast<double>(of_scale);
    clipped[i] += static_cast<double>(of_clipped);
  }
}

template <typename Real>
void channels(const Real* grad, const Real* x, Real* dx, int64_t count, const Grids<Real>& g,
              const LearnableSums& sums, int64_t channel) {
  row(grad, x, dx, count, g, sums.scale + channel, sums.clipped + channel);
}

template <Float type>
void stretch(const Short<type>* grad, const Short<type>* x, Short<type>* dx, int64_t count, const Affine<float>& a,
             const LearnableSums& sums, int64_t channel) {
  float real_grad[kBlock];
  float real_x[kBlock];
  float result[kBlock];
  BlockSums<float> blocks;
  for_each_block(count, [&](int64_t i, int64_t n) {
    widen(grad + i, real_grad, n);
    widen(x + i, real_x, n);
    elements(real_grad, real_x, result, blocks.scale, blocks.clipped, n, a);
    narrow(result, dx + i, n);
    blocks.add(n);
  });
  blocks.store(sums, channel);
}

template <Float type>
void channels(const Short<type>* grad, const Short<type>* x, Short<type>* dx, int64_t count, const Grids<float>& g,
              const LearnableSums& sums, int64_t channel) {
  float real_grad[kBlock];
  float real_x[kBlock];
  float result[kBlock];
  for_each_block(count, [&](int64_t i, int64_t n) {
    widen(grad + i, real_grad, n);
    widen(x + i, real_x, n);
    channels(real_grad, real_x, result, n, g.from(i), sums, channel + i);
    narrow(result, dx + i, n);
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
      [&](int64_t i, int64_t n, int64_t c) { channels(grad + i, x + i, dx + i, n, grids.from(c), sums, c); });
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
