#include "fake_quantize/fake_quantize_learnable.h"

#include <tuple>

#include "cuda/numbers.h"
#include "cuda/qparams.h"
#include "cuda/reduce.h"

namespace fxquant {
namespace {

struct Gradients {
  double of_scale;
  double clipped;  // incoming gradient of what was clipped
};

template <typename T>
struct Backward {
  using Value = Gradients;
  using Real = typename Number<T>::Real;
  const T* grad;
  const T* x;
  T* dx;
  DeviceAffine<Real> affine;

  static constexpr int kPack = kPackBytes / sizeof(T);
  bool aligned() const { return starts_pack<kPack>(grad) && starts_pack<kPack>(x) && starts_pack<kPack>(dx); }

  static FXQ_MEMBER Gradients nothing() { return {0, 0}; }
  static FXQ_MEMBER Gradients sum(const Gradients& a, const Gradients& b) {
    return {a.of_scale + b.of_scale, a.clipped + b.clipped};
  }

  FXQ_MEMBER Affine<Real> channel(int64_t c) const { return affine.of_channel(c); }

  // Stores the gradients of N elements, and adds their part to those of their qparams.
  template <int N>
  FXQ_MEMBER void add(const Affine<Real>& a, int64_t i, Gradients& gradients) const {
    const Pack<T, N> values = load_pack<N>(x + i);
    const Pack<T, N> incoming = load_pack<N>(grad + i);
    Pack<T, N> out;
    for (int j = 0; j < N; ++j) {
      const Real value = Number<T>::load(values.at[j]);
      const Real slope = Number<T>::load(incoming.at[j]);
      const Real q = round_to_quantized(value, a);
      const bool passes = inside(q, a);
      Number<T>::store(passes ? slope : Real{0}, out.at[j]);
      gradients.of_scale += static_cast<double>(slope * slope_of_scale(value, q, a));
      gradients.clipped += passes ? 0.0 : static_cast<double>(slope);
    }
    store_pack(out, dx + i);
  }
};

struct Finish {
  DeviceQParams qparams;
  double factor;
  float* of_scale;
  float* of_zero_point;

  FXQ_MEMBER void operator()(int64_t c, const Gradients& total) const {
    of_scale[c] = static_cast<float>(total.of_scale * factor);
    of_zero_point[c] = static_cast<float>(total.clipped * factor * -static_cast<double>(qparams.scale_at(c)));
  }
};

struct Launch {
  const LearnableBackward& b;
  const FakeQuantizeLearnableBackwardCall& call;
  const QParams& qparams;
  Finish finish;

  template <typename T>
  void go() const {
    const Layout layout = layout_of(b.x, b.axis);
    const DeviceAffine<typename Number<T>::Real> affine(qparams, layout, call.quant_min, call.quant_max);
    const Backward<T> backward{static_cast<const T*>(b.grad.const_data_ptr()),
                               static_cast<const T*>(b.x.const_data_ptr()), static_cast<T*>(b.dx.mutable_data_ptr()),
                               affine};
    reduce_channels(b.x, backward, layout, finish);
  }
};

std::tuple<Tensor, Tensor, Tensor> fake_quantize_learnable_backward_cuda(
    const FakeQuantizeLearnableBackwardCall& call) {
  const LearnableBackward b(call);
  const QParams qparams(b.kOp, call.input, call.scale, call.zero_point, b.channels);
  Tensor of_scale = torch::stable::new_empty(call.scale, call.scale.sizes(), ScalarType::Float);
  Tensor of_zero_point = torch::stable::new_empty(call.zero_point, call.zero_point.sizes(), ScalarType::Float);
  const Finish finish{qparams.device, call.grad_factor, of_scale.mutable_data_ptr<float>(),
                      of_zero_point.mutable_data_ptr<float>()};
  with_float(b.type, Launch{b, call, qparams, finish});
  return {b.dx, torch::stable::to(of_scale, call.scale.scalar_type()),
          torch::stable::to(of_zero_point, call.zero_point.scalar_type())};
}

}  // namespace

FXQ_CUDA_LIBRARY(m) {
  m.impl("fake_quantize_learnable_backward", FXQ_KERNEL(fake_quantize_learnable_backward_cuda));
}

}  // namespace fxquant
