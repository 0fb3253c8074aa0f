#include <torch/csrc/stable/library.h>

#include "common/memory_format.h"
#include "cuda/launch.h"
#include "cuda/numbers.h"
#include "cuda/qparams.h"

namespace fxquant {
namespace {

constexpr const char* kOp = "fxquant::quantize";

template <typename T, typename Q>
struct Quantize {
  using Real = typename Number<T>::Real;
  const T* x;
  Q* q;
  DeviceAffine<Real> affine;

  static constexpr int kPack = kPackBytes / sizeof(T);
  bool aligned() const { return starts_pack<kPack>(x) && starts_pack<kPack>(q); }

  template <int N>
  FXQ_MEMBER void run(int64_t i) const {
    const Pack<T, N> in = load_pack<N>(x + i);
    Pack<Q, N> out;
    ChannelIterator position(affine.layout, i);
    Affine<Real> a = affine.of_channel(position.channel());
    for (int j = 0; j < N; ++j) {
      if (j > 0 && position.next()) a = affine.of_channel(position.channel());
      out.at[j] = static_cast<Q>(static_cast<int32_t>(saturate(round_to_quantized(Number<T>::load(in.at[j]), a), a)));
    }
    store_pack(out, q + i);
  }
};

struct Arguments {
  const Tensor& x;
  const Tensor& q;
  const QParams& qparams;
  Layout layout;
  int64_t quant_min;
  int64_t quant_max;
};

template <typename T>
struct ToInteger {
  const Arguments& a;

  template <typename Q>
  void go() const {
    const DeviceAffine<typename Number<T>::Real> affine(a.qparams, a.layout, a.quant_min, a.quant_max);
    const T* source = static_cast<const T*>(a.x.const_data_ptr());
    for_each_pack(a.x, a.x.numel(), Quantize<T, Q>{source, static_cast<Q*>(a.q.mutable_data_ptr()), affine});
  }
};

struct FromFloat {
  const Arguments& a;
  Integer to;

  template <typename T>
  void go() const {
    with_integer(to, ToInteger<T>{a});
  }
};

Tensor quantize_cuda(const Tensor& x_, const Tensor& scale, const Tensor& zero_point, int64_t quant_min,
                     int64_t quant_max, ScalarType dtype, std::optional<int64_t> axis, bool channels_last) {
  const Float from = float_type(kOp, "x", x_.scalar_type());
  const Integer to = integer_type(kOp, "dtype", dtype);
  check_integers(kOp, quant_min, quant_max, dtype);
  check_channels_last(kOp, channels_last, x_.dim());
  if (axis.has_value()) axis = check_axis(kOp, *axis, x_.dim());
  const QParams qparams(kOp, x_, scale, zero_point, axis.has_value() ? x_.size(*axis) : 1);
  const Tensor x = channels_last ? in_order(x_, true) : dense(x_);
  const Tensor q = channels_last ? empty_as(x, sizes_of(x), true, dtype) : empty_like_dense(x, dtype);
  with_float(from, FromFloat{{x, q, qparams, layout_of(x, axis), quant_min, quant_max}, to});
  return q;
}

}  // namespace

FXQ_CUDA_LIBRARY(m) { m.impl("quantize", TORCH_BOX(&quantize_cuda)); }

}  // namespace fxquant
