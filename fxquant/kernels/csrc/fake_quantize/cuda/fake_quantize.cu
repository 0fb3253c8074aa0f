#include "fake_quantize/fake_quantize.h"

#include <tuple>

#include "cuda/launch.h"
#include "cuda/numbers.h"
#include "cuda/qparams.h"

namespace fxquant {
namespace {

template <typename T>
struct FakeQuantizeElements {
  using Real = typename Number<T>::Real;
  const T* x;
  T* y;
  bool* mask;  // may be null
  DeviceAffine<Real> affine;

  static constexpr int kPack = kPackBytes / sizeof(T);
  bool aligned() const { return starts_pack<kPack>(x) && starts_pack<kPack>(y) && starts_pack<kPack>(mask); }

  template <int N>
  FXQ_MEMBER void run(int64_t i) const {
    const Pack<T, N> in = load_pack<N>(x + i);
    Pack<T, N> out;
    Pack<bool, N> passes;
    ChannelIterator position(affine.layout, i);
    Affine<Real> a = affine.of_channel(position.channel());
    for (int j = 0; j < N; ++j) {
      if (j > 0 && position.next()) a = affine.of_channel(position.channel());
      const Real q = round_to_quantized(Number<T>::load(in.at[j]), a);
      passes.at[j] = inside(q, a);
      Number<T>::store(dequantize(saturate(q, a), a), out.at[j]);
    }
    store_pack(out, y + i);
    if (mask) store_pack(passes, mask + i);
  }
};

template <typename Bits>
struct Select {
  const Bits* grad;
  const bool* mask;
  Bits* result;

  static constexpr int kPack = kPackBytes / sizeof(Bits);
  bool aligned() const { return starts_pack<kPack>(grad) && starts_pack<kPack>(mask) && starts_pack<kPack>(result); }

  template <int N>
  FXQ_MEMBER void run(int64_t i) const {
    const Pack<Bits, N> in = load_pack<N>(grad + i);
    const Pack<bool, N> passes = load_pack<N>(mask + i);
    Pack<Bits, N> out;
    for (int j = 0; j < N; ++j) out.at[j] = passes.at[j] ? in.at[j] : Bits{0};
    store_pack(out, result + i);
  }
};

struct Launch {
  const FakeQuantize& f;
  const QParams& qparams;

  template <typename T>
  void go() const {
    const DeviceAffine<typename Number<T>::Real> affine(qparams, layout_of(f.x, f.axis), f.quant_min, f.quant_max);
    const T* source = static_cast<const T*>(f.x.const_data_ptr());
    T* target = static_cast<T*>(f.y.mutable_data_ptr());
    for_each_pack(f.x, f.x.numel(), FakeQuantizeElements<T>{source, target, f.mask_data(), affine});
  }
};

void run(const FakeQuantize& f, const QParams& qparams) { with_float(f.type, Launch{f, qparams}); }

template <typename Call>
Tensor fake_quantize_cuda(const Call& call) {
  const FakeQuantize f(call, false);
  run(f, qparams_of<QParams>(call, f));
  return f.y;
}

template <typename Call>
std::tuple<Tensor, Tensor> cachemask_cuda(const Call& call) {
  const FakeQuantize f(call, true);
  run(f, qparams_of<QParams>(call, f));
  return {f.y, f.mask};
}

Tensor fake_quantize_backward_cuda(const FakeQuantizeBackwardCall& call) {
  const FakeQuantizeBackward b(call);
  const auto select = [&](auto bits) {
    using Bits = decltype(bits);
    for_each_pack(b.mask, b.mask.numel(), Select<Bits>{static_cast<const Bits*>(b.grad.const_data_ptr()),
                                                       b.mask.const_data_ptr<bool>(),
                                                       static_cast<Bits*>(b.result.mutable_data_ptr())});
  };
  if (b.type == Float::kDouble) {
    select(uint64_t{});
  } else if (b.type == Float::kFloat) {
    select(uint32_t{});
  } else {
    select(uint16_t{});
  }
  return b.result;
}

}  // namespace

FXQ_CUDA_LIBRARY(m) {
  m.impl("fake_quantize_per_tensor_affine", FXQ_KERNEL(fake_quantize_cuda<FakeQuantizeTensorCall>));
  m.impl("fake_quantize_per_tensor_affine.tensor_qparams",
         FXQ_KERNEL(fake_quantize_cuda<FakeQuantizeTensorQParamsCall>));
  m.impl("fake_quantize_per_channel_affine", FXQ_KERNEL(fake_quantize_cuda<FakeQuantizeChannelCall>));
  m.impl("fake_quantize_per_tensor_affine_cachemask", FXQ_KERNEL(cachemask_cuda<FakeQuantizeTensorCall>));
  m.impl("fake_quantize_per_tensor_affine_cachemask.tensor_qparams",
         FXQ_KERNEL(cachemask_cuda<FakeQuantizeTensorQParamsCall>));
  m.impl("fake_quantize_per_channel_affine_cachemask", FXQ_KERNEL(cachemask_cuda<FakeQuantizeChannelCall>));
  m.impl("fake_quantize_backward", FXQ_KERNEL(fake_quantize_backward_cuda));
}

}  // namespace fxquant
