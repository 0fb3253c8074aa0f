#include "quantize/dequantize.h"

#include "cuda/launch.h"
#include "cuda/numbers.h"
#include "cuda/qparams.h"

namespace fxquant {
namespace {

template <typename Q>
struct Dequantize {
  const Q* q;
  float* y;
  DeviceQParams qparams;
  Layout layout;

  static constexpr int kPack = kPackBytes / sizeof(float);
  bool aligned() const { return starts_pack<kPack>(q) && starts_pack<kPack>(y); }

  template <int N>
  FXQ_MEMBER void run(int64_t i) const {
    const Pack<Q, N> in = load_pack<N>(q + i);
    Pack<float, N> out;
    ChannelIterator position(layout, i);
    for (int j = 0; j < N; ++j) {
      if (j > 0) position.next();
      out.at[j] =
          dequantize_wide(in.at[j], qparams.scale_at(position.channel()), qparams.zero_point_at(position.channel()));
    }
    store_pack(out, y + i);
  }
};

struct Call {
  const Tensor& q;
  const Tensor& y;
  const QParams& qparams;
  Layout layout;

  template <typename Q>
  void go() const {
    const Q* source = static_cast<const Q*>(q.const_data_ptr());
    for_each_pack(q, q.numel(), Dequantize<Q>{source, y.mutable_data_ptr<float>(), qparams.device, layout});
  }
};

Tensor dequantize_cuda(const DequantizeCall& call) {
  const DequantizeTypes types(call);
  const QParams qparams(DequantizeTypes::kOp, call.q, call.scale, call.zero_point, types.channels);
  const Tensor q = dense(call.q);
  const Tensor y = empty_like_dense(q, ScalarType::Float);
  with_integer(types.type, Call{q, y, qparams, layout_of(q, types.axis)});
  return y;
}

}  // namespace

FXQ_CUDA_LIBRARY(m) { m.impl("dequantize", FXQ_KERNEL(dequantize_cuda)); }

}  // namespace fxquant
