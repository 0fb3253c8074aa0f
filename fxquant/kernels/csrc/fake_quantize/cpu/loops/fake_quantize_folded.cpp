// Fake quantization of a weight that a batch norm will be folded into: y = fake_quantize(x * factor) / factor, and its
// backward pass.
//
//   for channel in tasks:                        # in parallel; x is [channels, inner]
//       for block of kBlock elements:            # stays in the L1 cache
//           for element: the value, or dx and a summand of the factor's gradient
//           backward: add the summands in kSumLanes float64 lanes
#include "fake_quantize/cpu/loops/fake_quantize_folded.h"

#include "fake_quantize/cpu/loops/sums.h"
#include "math/folded.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

template <typename Real>
void values(const Real* FXQ_RESTRICT x, Real* FXQ_RESTRICT y, int64_t count, Real factor, const Affine<Real> a) {
  for (int64_t i = 0; i < count; ++i) y[i] = folded(x[i], factor, a).value;
}

template <typename Real>
void gradients(const Real* FXQ_RESTRICT x, const Real* FXQ_RESTRICT grad, Real* FXQ_RESTRICT dx,
               Real* FXQ_RESTRICT slopes, int64_t count, Real factor, const Affine<Real> a) {
  for (int64_t i = 0; i < count; ++i) {
    const Folded<Real> each = folded(x[i], factor, a);
    dx[i] = each.passes ? grad[i] : Real{0};
    slopes[i] = grad[i] * each.slope;
  }
}

// float and double are computed as they are, 16-bit floats block by block.
template <typename Real>
void channel(const Real* x, Real* y, int64_t count, Real factor, const Affine<Real>& a) {
  values(x, y, count, factor, a);
}

template <Float type>
void channel(const Short<type>* x, Short<type>* y, int64_t count, float factor, const Affine<float>& a) {
  float real[kBlock];
  float result[kBlock];
  for_each_block(count, [&](int64_t i, int64_t n) {
    widen(x + i, real, n);
    values(real, result, n, factor, a);
    narrow(result, y + i, n);
  });
}

template <typename Real>
double channel_backward(const Real* x, const Real* grad, Real* dx, int64_t count, Real factor,
                        const Affine<Real>& a) {
  double lanes[kSumLanes] = {};
  Real slopes[kBlock + kSumLanes];
  for_each_block(count, [&](int64_t i, int64_t n) {
    gradients(x + i, grad + i, dx + i, slopes, n, factor, a);
    add_to_lanes(slopes, fill_last_round(slopes, n), kSumLanes, lanes);
  });
  return horizontal_sum(lanes);
}

template <Float type>
double channel_backward(const Short<type>* x, const Short<type>* grad, Short<type>* dx, int64_t count, float factor,
                        const Affine<float>& a) {
  double lanes[kSumLanes] = {};
  float real[kBlock];
  float real_grad[kBlock];
  float result[kBlock];
  float slopes[kBlock + kSumLanes];
  for_each_block(count, [&](int64_t i, int64_t n) {
    widen(x + i, real, n);
    widen(grad + i, real_grad, n);
    gradients(real, real_grad, result, slopes, n, factor, a);
    narrow(result, dx + i, n);
    add_to_lanes(slopes, fill_last_round(slopes, n), kSumLanes, lanes);
  });
  return horizontal_sum(lanes);
}

template <typename T, typename Real>
void folded_channels(const FoldedArgs& args, const ChannelQParams<Real>& qparams, int64_t first, int64_t last) {
  const T* x = static_cast<const T*>(args.x);
  const T* grad = static_cast<const T*>(args.grad);
  T* result = static_cast<T*>(args.result);
  for (int64_t c = first; c < last; ++c) {
    const int64_t i = c * args.inner;
    const Real factor = static_cast<Real>(args.factor[c]);
    if (grad) {
      args.sums[c] = channel_backward(x + i, grad + i, result + i, args.inner, factor, qparams.at(c));
    } else {
      channel(x + i, result + i, args.inner, factor, qparams.at(c));
    }
  }
}

}  // namespace

void fake_quantize_folded_loop(const FoldedArgs& args, int64_t first, int64_t last) {
  switch (args.type) {
    case Float::kFloat: return folded_channels<float>(args, args.qparams, first, last);
    case Float::kDouble: return folded_channels<double>(args, args.double_qparams, first, last);
    case Float::kHalf: return folded_channels<Half>(args, args.qparams, first, last);
    case Float::kBFloat16: return folded_channels<BFloat16>(args, args.qparams, first, last);
  }
}

}  // namespace FXQ_ISA
}  // namespace fxquant
