#include "quantize/quantize.h"

#include "cpu/launch.h"
#include "cpu/qparams.h"
#include "quantize/cpu/loops/quantize.h"

namespace fxquant {
namespace {

// x lies as [N][C][H][W], and q is to lie as [N][H][W][C].
Tensor quantize_image(const Tensor& x, QuantizeArgs args, bool per_channel, ScalarType dtype) {
  const int64_t strides[] = {x.size(1) * x.size(2) * x.size(3), 1, x.size(3) * x.size(1), x.size(1)};
  const Tensor q = empty_strided(x, strides, dtype);
  args.q = q.mutable_data_ptr();
  args.layout = {x.size(0), x.size(1), x.size(2) * x.size(3)};
  const QuantizeImageArgs image{args, per_channel};
  const int64_t tasks = x.size(0) * ((args.layout.inner + kPixels - 1) / kPixels);
  const int64_t grain = kGrain / (kPixels * (x.size(1) + 1)) + 1;
  launch(image, tasks, grain, [](const QuantizeImageArgs& a, int64_t begin, int64_t end, void*) {
    FXQ_LOOP(quantize_image_loop)(a, begin, end);
  });
  return q;
}

Tensor quantize_cpu(const QuantizeCall& call) {
  const QuantizeTypes types(call);
  const auto& axis = types.axis;
  QParams qparams(QuantizeTypes::kOp, call.x, call.scale, call.zero_point, types.channels);

  const bool by_image = !axis.has_value() || *axis == 1;
  const bool as_image = call.channels_last && by_image && call.x.is_contiguous() && call.x.numel() > 0;
  const Tensor x = call.channels_last && !as_image ? to_memory_format(call.x, true) : dense(call.x);
  QuantizeArgs args{types.from, types.to, x.const_data_ptr(), nullptr, layout_of(x, axis), {}, {}};
  if (!as_image) qparams.lengthen_rows(args.layout);
  const QParamsOfEitherType arrays(types.from, qparams, call.quant_min, call.quant_max);
  args.qparams = arrays.floats.view();
  args.double_qparams = arrays.doubles.view();
  if (as_image) return quantize_image(x, args, axis.has_value(), call.dtype);

  const Tensor q = empty_like_dense(x, call.dtype);
  args.q = q.mutable_data_ptr();
  launch(args, x.numel(), kGrain,
         [](const QuantizeArgs& a, int64_t begin, int64_t end, void*) { FXQ_LOOP(quantize_loop)(a, begin, end); });
  return q;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fxquant, CPU, m) { m.impl("quantize", FXQ_KERNEL(quantize_cpu)); }

}  // namespace fxquant
