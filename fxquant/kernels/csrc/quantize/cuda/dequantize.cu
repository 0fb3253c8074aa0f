#include <torch/csrc/stable/library.h>

#include "cuda/launch.h"
#include "cuda/numbers.h"
#include "cuda/qparams.h"

namespace fxquant {
namespace {

constexpr const char* kOp = "fxquant::dequantize";

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

Tensor dequantize_cuda(const Tensor& q_, const Tensor& scale, const Tensor& zero_point, std::optional<int64_t> axis) {
  const Integer type = integer_type(kOp, "q", q_.scalar_type());
  if (axis.has_value()) axis = check_axis(kOp, *axis, q_.dim());
  const QParams qparams(kOp, q_, scale, zero_point, axis.has_value() ? q_.size(*axis) : 1);
  const Tensor q = dense(q_);
  const Tensor y = empty_like_dense(q, ScalarType::Float);
  with_integer(type, Call{q, y, qparams, layout_of(q, axis)});
  return y;
}

}  // namespace

FXQ_CUDA_LIBRARY(m) { m.impl("dequantize", TORCH_BOX(&dequantize_cuda)); }

}  // namespace fxquant
