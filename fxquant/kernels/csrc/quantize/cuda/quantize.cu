#include "quantize/quantize.h"

#include "cuda/launch.h"
#include "cuda/numbers.h"
#include "cuda/qparams.h"

namespace fxquant {
namespace {

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

Tensor quantize_cuda(const QuantizeCall& call) {
  const QuantizeTypes types(call);
  const QParams qparams(QuantizeTypes::kOp, call.x, call.scale, call.zero_point, types.channels);
  const Tensor x = call.channels_last ? to_memory_format(call.x, true) : dense(call.x);
  const Tensor q = call.channels_last ? empty_as(x, sizes_of(x), true, call.dtype) : empty_like_dense(x, call.dtype);
  const Arguments arguments{x, q, qparams, layout_of(x, types.axis), call.quant_min, call.quant_max};
  with_float(types.from, FromFloat{arguments, types.to});
  return q;
}

}  // namespace

FXQ_CUDA_LIBRARY(m) { m.impl("quantize", FXQ_KERNEL(quantize_cuda)); }

}  // namespace fxquant
