#include "fake_quantize/fake_quantize.h"

#include <tuple>

#include "cpu/qparams.h"
#include "fake_quantize/cpu/loops/fake_quantize.h"

namespace fxquant {
namespace {

void run(const FakeQuantize& f, QParams qparams) {
  qparams.check_zero_points(f.op, f.quant_min, f.quant_max);
  Layout layout = layout_of(f.x, f.axis);
  const int64_t channels = layout.channels;
  qparams.lengthen_rows(layout);
  const QParamsOfEitherType arrays(f.type, qparams, f.quant_min, f.quant_max);
  const PairedQParamsArrays paired_arrays(f.type, layout, qparams, f.quant_min, f.quant_max);
  const FakeQuantizeArgs args{f.type,
                              f.x.const_data_ptr(),
                              f.y.mutable_data_ptr(),
                              f.mask_data(),
                              layout,
                              channels,
                              arrays.floats.view(),
                              arrays.doubles.view(),
                              paired_arrays.view()};
  const auto loop = FXQ_LOOP(fake_quantize_loop);
  torch::stable::parallel_for(0, f.x.numel(), kGrain, [&](int64_t begin, int64_t end) { loop(args, begin, end); });
}

template <typename Call>
Tensor fake_quantize_cpu(const Call& call) {
  const FakeQuantize f(call, false);
  run(f, qparams_of<QParams>(call, f));
  return f.y;
}

template <typename Call>
std::tuple<Tensor, Tensor> cachemask_cpu(const Call& call) {
  const FakeQuantize f(call, true);
  run(f, qparams_of<QParams>(call, f));
  return {f.y, f.mask};
}

Tensor fake_quantize_backward_cpu(const FakeQuantizeBackwardCall& call) {
  const FakeQuantizeBackward b(call);
  const FakeQuantizeBackwardArgs args{b.type, b.grad.const_data_ptr(), b.mask.const_data_ptr<bool>(),
                                      b.result.mutable_data_ptr()};
  const auto loop = FXQ_LOOP(fake_quantize_backward_loop);
  torch::stable::parallel_for(0, b.mask.numel(), kGrain, [&](int64_t begin, int64_t end) { loop(args, begin, end); });
  return b.result;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fxquant, CPU, m) {
  m.impl("fake_quantize_per_tensor_affine", FXQ_KERNEL(fake_quantize_cpu<FakeQuantizeTensorCall>));
  m.impl("fake_quantize_per_tensor_affine.tensor_qparams",
         FXQ_KERNEL(fake_quantize_cpu<FakeQuantizeTensorQParamsCall>));
  m.impl("fake_quantize_per_channel_affine", FXQ_KERNEL(fake_quantize_cpu<FakeQuantizeChannelCall>));
  m.impl("fake_quantize_per_tensor_affine_cachemask", FXQ_KERNEL(cachemask_cpu<FakeQuantizeTensorCall>));
  m.impl("fake_quantize_per_tensor_affine_cachemask.tensor_qparams",
         FXQ_KERNEL(cachemask_cpu<FakeQuantizeTensorQParamsCall>));
  m.impl("fake_quantize_per_channel_affine_cachemask", FXQ_KERNEL(cachemask_cpu<FakeQuantizeChannelCall>));
  m.impl("fake_quantize_backward", FXQ_KERNEL(fake_quantize_backward_cpu));
}

}  // namespace fxquant
