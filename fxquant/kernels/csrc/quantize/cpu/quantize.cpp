#include <torch/csrc/stable/library.h>

#include "common/memory_format.h"
#include "cpu/launch.h"
#include "cpu/qparams.h"
#include "quantize/cpu/loops/quantize.h"

namespace fxquant {
namespace {

constexpr const char* kOp = "fxquant::quantize";

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

Tensor quantize_cpu(const Tensor& x_, const Tensor& scale, const Tensor& zero_point, int64_t quant_min,
                    int64_t quant_max, ScalarType dtype, std::optional<int64_t> axis, bool channels_last) {
  const Float from = float_type(kOp, "x", x_.scalar_type());
  const Integer to = integer_type(kOp, "dtype", dtype);
  check_integers(kOp, quant_min, quant_max, dtype);
  check_channels_last(kOp, channels_last, x_.dim());
  if (axis.has_value()) axis = check_axis(kOp, *axis, x_.dim());
  QParams qparams(kOp, scale, zero_point, axis.has_value() ? x_.size(*axis) : 1);

  const bool as_image = channels_last && (!axis.has_value() || *axis == 1) && x_.is_contiguous() && x_.numel() > 0;
  const Tensor x = channels_last && !as_image ? in_order(x_, true) : dense(x_);
  QuantizeArgs args{from, to, x.const_data_ptr(), nullptr, layout_of(x, axis), {}, {}};
  if (!as_image) qparams.lengthen_rows(args.layout);
  const QParamsOfEitherType arrays(from, qparams, quant_min, quant_max);
  args.qparams = arrays.floats.view();
  args.double_qparams = arrays.doubles.view();
  if (as_image) return quantize_image(x, args, axis.has_value(), dtype);

  const Tensor q = empty_like_dense(x, dtype);
  args.q = q.mutable_data_ptr();
  launch(args, x.numel(), kGrain,
         [](const QuantizeArgs& a, int64_t begin, int64_t end, void*) { FXQ_LOOP(quantize_loop)(a, begin, end); });
  return q;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fxquant, CPU, m) { m.impl("quantize", TORCH_BOX(&quantize_cpu)); }

}  // namespace fxquant
