#include <torch/csrc/stable/library.h>

#include <tuple>

#include "cuda/launch.h"
#include "cuda/numbers.h"
#include "cuda/qparams.h"

namespace fxquant {
namespace {

constexpr const char* kTensorOp = "fxquant::fake_quantize_per_tensor_affine";
constexpr const char* kChannelOp = "fxquant::fake_quantize_per_channel_affine";
constexpr const char* kBackwardOp = "fxquant::fake_quantize_backward";

template <typename T>
struct FakeQuantize {
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

// The mask is undefined unless it is wanted.
struct Result {
  Tensor y;
  Tensor mask;

  std::tuple<Tensor, Tensor> both() const { return {y, mask}; }
};

struct Call {
  const Tensor& x;
  const Result& result;
  bool* mask;
  const QParams& qparams;
  Layout layout;
  int64_t quant_min;
  int64_t quant_max;

  template <typename T>
  void go() const {
    const DeviceAffine<typename Number<T>::Real> affine(qparams, layout, quant_min, quant_max);
    const T* source = static_cast<const T*>(x.const_data_ptr());
    for_each_pack(x, x.numel(), FakeQuantize<T>{source, static_cast<T*>(result.y.mutable_data_ptr()), mask, affine});
  }
};

Result run(const char* op, const Tensor& x_, const QParams& qparams, std::optional<int64_t> axis, int64_t quant_min,
           int64_t quant_max, bool with_mask) {
  const Float type = float_type(op, "input", x_.scalar_type());
  check_limits(op, quant_min, quant_max, kInt32Min, kInt32Max);
  const Tensor x = dense(x_);
  Result result{empty_like_dense(x, x.scalar_type()), Tensor()};
  if (with_mask) result.mask = empty_like_dense(x, ScalarType::Bool);
  bool* mask = with_mask ? result.mask.mutable_data_ptr<bool>() : nullptr;
  with_float(type, Call{x, result, mask, qparams, layout_of(x, axis), quant_min, quant_max});
  return result;
}

Result per_tensor(const Tensor& x, double scale, int64_t zero_point, int64_t quant_min, int64_t quant_max,
                  bool with_mask) {
  check_limits(kTensorOp, quant_min, quant_max, kInt32Min, kInt32Max);
  check_zero_point(kTensorOp, zero_point, quant_min, quant_max);
  return run(kTensorOp, x, QParams(scale, zero_point), std::nullopt, quant_min, quant_max, with_mask);
}

Result per_tensor(const Tensor& x, const Tensor& scale, const Tensor& zero_point, int64_t quant_min,
                  int64_t quant_max, bool with_mask) {
  return run(kTensorOp, x, QParams(kTensorOp, x, scale, zero_point, 1), std::nullopt, quant_min, quant_max, with_mask);
}

Result per_channel(const Tensor& x, const Tensor& scale, const Tensor& zero_point, int64_t axis, int64_t quant_min,
                   int64_t quant_max, bool with_mask) {
  axis = check_axis(kChannelOp, axis, x.dim());
  const QParams qparams(kChannelOp, x, scale, zero_point, x.size(axis));
  return run(kChannelOp, x, qparams, axis, quant_min, quant_max, with_mask);
}

Tensor tensor_cuda(const Tensor& x, double scale, int64_t zero_point, int64_t quant_min, int64_t quant_max) {
  return per_tensor(x, scale, zero_point, quant_min, quant_max, false).y;
}

Tensor tensor_qparams_cuda(const Tensor& x, const Tensor& scale, const Tensor& zero_point, int64_t quant_min,
                           int64_t quant_max) {
  return per_tensor(x, scale, zero_point, quant_min, quant_max, false).y;
}

Tensor channel_cuda(const Tensor& x, const Tensor& scale, const Tensor& zero_point, int64_t axis, int64_t quant_min,
                    int64_t quant_max) {
  return per_channel(x, scale, zero_point, axis, quant_min, quant_max, false).y;
}

std::tuple<Tensor, Tensor> tensor_mask_cuda(const Tensor& x, double scale, int64_t zero_point, int64_t quant_min,
                                            int64_t quant_max) {
  return per_tensor(x, scale, zero_point, quant_min, quant_max, true).both();
}

std::tuple<Tensor, Tensor> tensor_qparams_mask_cuda(const Tensor& x, const Tensor& scale, const Tensor& zero_point,
                                                    int64_t quant_min, int64_t quant_max) {
  return per_tensor(x, scale, zero_point, quant_min, quant_max, true).both();
}

std::tuple<Tensor, Tensor> channel_mask_cuda(const Tensor& x, const Tensor& scale, const Tensor& zero_point,
                                             int64_t axis, int64_t quant_min, int64_t quant_max) {
  return per_channel(x, scale, zero_point, axis, quant_min, quant_max, true).both();
}

Tensor backward_cuda(const Tensor& grad_, const Tensor& mask_) {
  const Float type = float_type(kBackwardOp, "grad", grad_.scalar_type());
  check_mask(kBackwardOp, grad_, mask_);
  const Tensor mask = dense(mask_);
  const Tensor grad = in_strides_of(mask, grad_);
  const Tensor result = empty_like_dense(mask, grad.scalar_type());
  const bool* passes = mask.const_data_ptr<bool>();
  const auto select = [&](auto bits) {
    using Bits = decltype(bits);
    for_each_pack(mask, mask.numel(), Select<Bits>{static_cast<const Bits*>(grad.const_data_ptr()), passes,
                                                   static_cast<Bits*>(result.mutable_data_ptr())});
  };
  if (type == Float::kDouble) {
    select(uint64_t{});
  } else if (type == Float::kFloat) {
    select(uint32_t{});
  } else {
    select(uint16_t{});
  }
  return result;
}

}  // namespace

FXQ_CUDA_LIBRARY(m) {
  m.impl("fake_quantize_per_tensor_affine", TORCH_BOX(&tensor_cuda));
  m.impl("fake_quantize_per_tensor_affine.tensor_qparams", TORCH_BOX(&tensor_qparams_cuda));
  m.impl("fake_quantize_per_channel_affine", TORCH_BOX(&channel_cuda));
  m.impl("fake_quantize_per_tensor_affine_cachemask", TORCH_BOX(&tensor_mask_cuda));
  m.impl("fake_quantize_per_tensor_affine_cachemask.tensor_qparams", TORCH_BOX(&tensor_qparams_mask_cuda));
  m.impl("fake_quantize_per_channel_affine_cachemask", TORCH_BOX(&channel_mask_cuda));
  m.impl("fake_quantize_backward", TORCH_BOX(&backward_cuda));
}

}  // namespace fxquant
