#include "fake_quantize/fake_quantize_folded.h"

#include <tuple>

#include "cuda/numbers.h"
#include "cuda/qparams.h"
#include "cuda/reduce.h"
#include "math/folded.h"

namespace fxquant {
namespace {

// Factor and qparams of a channel.
template <typename Real>
struct FoldedChannel {
  Real factor;
  Affine<Real> affine;
};

template <typename T>
struct Channels {
  using Real = typename Number<T>::Real;
  const Real* factor;
  DeviceQParams qparams;
  bool per_tensor;
  Real low;
  Real high;

  FXQ_MEMBER FoldedChannel<Real> at(int64_t c) const {
    const int64_t g = per_tensor ? 0 : c;
    const Real scale = static_cast<Real>(qparams.scale_at(g));
    return {factor[c], {scale, Real{1} / scale, static_cast<Real>(qparams.zero_point_at(g)), low, high}};
  }
};

template <typename T>
struct Forward {
  using Real = typename Number<T>::Real;
  const T* x;
  T* y;
  Channels<T> channels;
  Layout layout;

  static constexpr int kPack = kPackBytes / sizeof(T);
  bool aligned() const { return starts_pack<kPack>(x) && starts_pack<kPack>(y); }

  template <int N>
  FXQ_MEMBER void run(int64_t i) const {
    const Pack<T, N> in = load_pack<N>(x + i);
    Pack<T, N> out;
    ChannelIterator position(layout, i);
    FoldedChannel<Real> channel = channels.at(position.channel());
    for (int j = 0; j < N; ++j) {
      if (j > 0 && position.next()) channel = channels.at(position.channel());
      Number<T>::store(folded(Number<T>::load(in.at[j]), channel.factor, channel.affine).value, out.at[j]);
    }
    store_pack(out, y + i);
  }
};

template <typename T>
struct Backward {
  using Value = double;
  using Real = typename Number<T>::Real;
  const T* grad;
  const T* x;
  T* dx;
  Channels<T> channels;

  static constexpr int kPack = kPackBytes / sizeof(T);
  bool aligned() const { return starts_pack<kPack>(grad) && starts_pack<kPack>(x) && starts_pack<kPack>(dx); }

  static FXQ_MEMBER double nothing() { return 0; }
  static FXQ_MEMBER double sum(double a, double b) { return a + b; }

  FXQ_MEMBER FoldedChannel<Real> channel(int64_t c) const { return channels.at(c); }

  template <int N>
  FXQ_MEMBER void add(const FoldedChannel<Real>& channel, int64_t i, double& of_factor) const {
    const Pack<T, N> values = load_pack<N>(x + i);
    const Pack<T, N> incoming = load_pack<N>(grad + i);
    Pack<T, N> out;
    for (int j = 0; j < N; ++j) {
      const Folded<Real> each = folded(Number<T>::load(values.at[j]), channel.factor, channel.affine);
      const Real slope = Number<T>::load(incoming.at[j]);
      Number<T>::store(each.passes ? slope : Real{0}, out.at[j]);
      of_factor += static_cast<double>(slope * each.slope);
    }
    store_pack(out, dx + i);
  }
};

template <typename Real>
struct Finish {
  Real* of_factor;

  FXQ_MEMBER void operator()(int64_t c, double sum) const { of_factor[c] = static_cast<Real>(sum); }
};

// Fills the result, and with a gradient also that of the factor. Factors are float32, or float64 as x.
struct Launch {
  const FakeQuantizeFolded& f;
  const QParams& qparams;
  const Tensor& factor;
  const Tensor& of_factor;

  template <typename T>
  void go() const {
    using Real = typename Number<T>::Real;
    const T* source = static_cast<const T*>(f.x.const_data_ptr());
    T* target = static_cast<T*>(f.result.mutable_data_ptr());
    const Channels<T> channels{factor.const_data_ptr<Real>(), qparams.device, f.per_tensor,
                               within<Real>(f.call.quant_min, 1), within<Real>(f.call.quant_max, -1)};
    const Layout layout{1, f.channels, f.inner()};
    if (!f.grad.defined()) return for_each_pack(f.x, f.x.numel(), Forward<T>{source, target, channels, layout});
    const Backward<T> backward{static_cast<const T*>(f.grad.const_data_ptr()), source, target, channels};
    reduce_channels(f.x, backward, layout, Finish<Real>{of_factor.mutable_data_ptr<Real>()});
  }
};

// Returns the gradient of the factor, which is 0 unless one is asked for.
Tensor run(const FakeQuantizeFolded& f) {
  const FakeQuantizeFoldedCall& call = f.call;
  const QParams qparams(f.op, call.input, call.scale, call.zero_point, f.per_tensor ? 1 : f.channels);
  const ScalarType real = f.type == Float::kDouble ? ScalarType::Double : ScalarType::Float;
  const Tensor factor = torch::stable::contiguous(torch::stable::to(call.factor, real));
  const Tensor of_factor = torch::stable::new_zeros(factor, factor.sizes(), real);
  if (f.x.numel() > 0) with_float(f.type, Launch{f, qparams, factor, of_factor});
  return torch::stable::to(of_factor, call.factor.scalar_type());
}

Tensor fake_quantize_folded_cuda(const FakeQuantizeFoldedCall& call) {
  const FakeQuantizeFolded f(call);
  run(f);
  return f.result;
}

std::tuple<Tensor, Tensor> fake_quantize_folded_backward_cuda(const FakeQuantizeFoldedBackwardCall& call) {
  const FakeQuantizeFolded f(call);
  const Tensor of_factor = run(f);
  return {f.result, of_factor};
}

}  // namespace

FXQ_CUDA_LIBRARY(m) {
  m.impl("fake_quantize_folded", FXQ_KERNEL(fake_quantize_folded_cuda));
  m.impl("fake_quantize_folded_backward", FXQ_KERNEL(fake_quantize_folded_backward_cuda));
}

}  // namespace fxquant
