#include <torch/csrc/stable/library.h>

#include <tuple>

#include "cuda/numbers.h"
#include "cuda/qparams.h"
#include "cuda/reduce.h"
#include "math/folded.h"

namespace fxquant {
namespace {

constexpr const char* kOp = "fxquant::fake_quantize_folded";
constexpr const char* kBackwardOp = "fxquant::fake_quantize_folded_backward";

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

struct Call {
  const Tensor& x;
  const Tensor* grad;
  const Tensor& result;
  const Tensor& factor;
  const Tensor* of_factor;
  const QParams& qparams;
  bool per_tensor;
  int64_t quant_min;
  int64_t quant_max;

  template <typename T>
  void go() const {
    using Real = typename Number<T>::Real;
    const T* source = static_cast<const T*>(x.const_data_ptr());
    T* target = static_cast<T*>(result.mutable_data_ptr());
    const Channels<T> channels{factor.const_data_ptr<Real>(), qparams.device, per_tensor, within<Real>(quant_min, 1),
                               within<Real>(quant_max, -1)};
    const Layout layout{1, x.size(0), x.numel() / x.size(0)};
    if (!grad) return for_each_pack(x, x.numel(), Forward<T>{source, target, channels, layout});
    const Backward<T> backward{static_cast<const T*>(grad->const_data_ptr()), source, target, channels};
    reduce_channels(x, backward, layout, Finish<Real>{of_factor->mutable_data_ptr<Real>()});
  }
};

// The values, or, with grad, the gradients of input and factor.
std::tuple<Tensor, Tensor> run(const char* op, const Tensor* grad_, const Tensor& input, const Tensor& factor_,
                               const Tensor& scale, const Tensor& zero_point, int64_t quant_min, int64_t quant_max) {
  const Float type = float_type(op, "input", input.scalar_type());
  check_limits(op, quant_min, quant_max, kInt32Min, kInt32Max);
  if (input.dim() == 0) fail(std::string(op) + ": input has no channels", "[]", "at least one dimension");
  check_count(op, "factor", factor_, input.size(0));
  const bool per_tensor = scale.numel() == 1;
  const QParams qparams(op, input, scale, zero_point, per_tensor ? 1 : input.size(0));
  const ScalarType real = type == Float::kDouble ? ScalarType::Double : ScalarType::Float;
  const Tensor factor = torch::stable::contiguous(torch::stable::to(factor_, real));
  const Tensor x = torch::stable::contiguous(input);
  const Tensor result = empty_like_dense(x, x.scalar_type());
  const Tensor grad = grad_ ? torch::stable::contiguous(*grad_) : Tensor();
  const Tensor of_factor = torch::stable::new_zeros(factor, factor.sizes(), real);
  if (x.numel() > 0) {
    with_float(type, Call{x, grad_ ? &grad : nullptr, result, factor, &of_factor, qparams, per_tensor, quant_min,
                          quant_max});
  }
  return {result, torch::stable::to(of_factor, factor_.scalar_type())};
}

Tensor forward_cuda(const Tensor& input, const Tensor& factor, const Tensor& scale, const Tensor& zero_point,
                    int64_t quant_min, int64_t quant_max) {
  return std::get<0>(run(kOp, nullptr, input, factor, scale, zero_point, quant_min, quant_max));
}

std::tuple<Tensor, Tensor> backward_cuda(const Tensor& grad, const Tensor& input, const Tensor& factor,
                                         const Tensor& scale, const Tensor& zero_point, int64_t quant_min,
                                         int64_t quant_max) {
  check_gradient(kBackwardOp, grad, input);
  return run(kBackwardOp, &grad, input, factor, scale, zero_point, quant_min, quant_max);
}

}  // namespace

FXQ_CUDA_LIBRARY(m) {
  m.impl("fake_quantize_folded", TORCH_BOX(&forward_cuda));
  m.impl("fake_quantize_folded_backward", TORCH_BOX(&backward_cuda));
}

}  // namespace fxquant
