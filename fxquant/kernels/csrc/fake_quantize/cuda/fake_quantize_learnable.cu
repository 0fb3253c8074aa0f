#include <torch/csrc/stable/library.h>

#include <tuple>

#include "cuda/numbers.h"
#include "cuda/qparams.h"
#include "cuda/reduce.h"

namespace fxquant {
namespace {

constexpr const char* kOp = "fxquant::fake_quantize_learnable_backward";
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

struct Call {
  const Tensor& grad;
  const Tensor& x;
  const Tensor& dx;
  const QParams& qparams;
  Layout layout;
  int64_t quant_min;
  int64_t quant_max;
  Finish finish;

  template <typename T>
  void go() const {
    const Backward<T> backward{static_cast<const T*>(grad.const_data_ptr()), static_cast<const T*>(x.const_data_ptr()),
                               static_cast<T*>(dx.mutable_data_ptr()),
                               DeviceAffine<typename Number<T>::Real>(qparams, layout, quant_min, quant_max)};
    reduce_channels(x, backward, layout, finish);
  }
};

std::tuple<Tensor, Tensor, Tensor> backward_cuda(const Tensor& grad_, const Tensor& x_, const Tensor& scale,
                                                 const Tensor& zero_point, std::optional<int64_t> axis,
                                                 int64_t quant_min, int64_t quant_max, double grad_factor) {
  const Float type = float_type(kOp, "input", x_.scalar_type());
  check_gradient(kOp, grad_, x_);
  check_learnable_limits(kOp, quant_min, quant_max);
  if (axis.has_value()) axis = check_axis(kOp, *axis, x_.dim());
  const int64_t channels = axis.has_value() ? x_.size(*axis) : 1;
  const QParams qparams(kOp, x_, scale, zero_point, channels);
  const Tensor x = dense(x_);
  const Tensor grad = in_strides_of(x, grad_);
  const Tensor dx = empty_like_dense(x, x.scalar_type());
  const Layout layout = layout_of(x, axis);
  Tensor of_scale = torch::stable::new_empty(scale, scale.sizes(), ScalarType::Float);
  Tensor of_zero_point = torch::stable::new_empty(zero_point, zero_point.sizes(), ScalarType::Float);
  const Finish finish{qparams.device, grad_factor, of_scale.mutable_data_ptr<float>(),
                      of_zero_point.mutable_data_ptr<float>()};
  with_float(type, Call{grad, x, dx, qparams, layout, quant_min, quant_max, finish});
  return {dx, torch::stable::to(of_scale, scale.scalar_type()),
          torch::stable::to(of_zero_point, zero_point.scalar_type())};
}

}  // namespace

FXQ_CUDA_LIBRARY(m) {
  m.impl("fake_quantize_learnable_backward", TORCH_BOX(&backward_cuda));
}

}  // namespace fxquant
