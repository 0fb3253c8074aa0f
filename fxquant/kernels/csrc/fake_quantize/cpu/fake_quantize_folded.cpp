#include "fake_quantize/fake_quantize_folded.h"

#include <algorithm>
#include <tuple>
#include <vector>

#include "cpu/qparams.h"
#include "fake_quantize/cpu/loops/fake_quantize_folded.h"

namespace fxquant {
namespace {

std::vector<double> factors_of(const FakeQuantizeFolded& f) {
  const Tensor& factor = f.call.factor;
  if (!factor.is_cpu()) {
    fail(std::string(f.op) + ": factor lies on another device than the tensor", "no CPU tensor", "cpu");
  }
  std::vector<double> factors;
  const int64_t step = factor.dim() == 0 ? 0 : factor.stride(0);
  visit_numbers(f.op, "factor", factor, [&](const auto* values) {
    for (int64_t c = 0; c < f.channels; ++c) factors.push_back(static_cast<double>(values[c * step]));
  });
  return factors;
}

// Fills the result. With a gradient, sums [channels] gets that of the factor; else it is null.
void run(const FakeQuantizeFolded& f, double* sums) {
  const FakeQuantizeFoldedCall& call = f.call;
  QParams qparams(f.op, call.input, call.scale, call.zero_point, f.per_tensor ? 1 : f.channels);
  qparams.check_zero_points(f.op, call.quant_min, call.quant_max);
  if (f.per_tensor) qparams.expand(f.channels);
  const std::vector<double> factors = factors_of(f);
  if (f.x.numel() == 0) return;
  const QParamsOfEitherType arrays(f.type, qparams, call.quant_min, call.quant_max);
  const FoldedArgs args{f.type,
                        f.x.const_data_ptr(),
                        f.grad.defined() ? f.grad.const_data_ptr() : nullptr,
                        f.result.mutable_data_ptr(),
                        sums,
                        factors.data(),
                        f.inner(),
                        arrays.floats.view(),
                        arrays.doubles.view()};
  const auto loop = FXQ_LOOP(fake_quantize_folded_loop);
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(args.inner, 1));
  torch::stable::parallel_for(0, f.channels, grain, [&](int64_t first, int64_t last) { loop(args, first, last); });
}

Tensor fake_quantize_folded_cpu(const FakeQuantizeFoldedCall& call) {
  const FakeQuantizeFolded f(call);
  run(f, nullptr);
  return f.result;
}

std::tuple<Tensor, Tensor> fake_quantize_folded_backward_cpu(const FakeQuantizeFoldedBackwardCall& call) {
  const FakeQuantizeFolded f(call);
  const Tensor of_factor = torch::stable::new_zeros(call.factor, call.factor.sizes(), ScalarType::Double);
  run(f, of_factor.mutable_data_ptr<double>());
  return {f.result, torch::stable::to(of_factor, call.factor.scalar_type())};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fxquant, CPU, m) {
  m.impl("fake_quantize_folded", FXQ_KERNEL(fake_quantize_folded_cpu));
  m.impl("fake_quantize_folded_backward", FXQ_KERNEL(fake_quantize_folded_backward_cpu));
}

}  // namespace fxquant
