#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "common/memory_format.h"
#include "cpu/qparams.h"
#include "fake_quantize/cpu/loops/fake_quantize_folded.h"

namespace fxquant {
namespace {

constexpr const char* kOp = "fxquant::fake_quantize_folded";
constexpr const char* kBackwardOp = "fxquant::fake_quantize_folded_backward";

struct Call {
  const char* op;
  const Tensor& input;
  const Tensor& factor;
  const Tensor& scale;
  const Tensor& zero_point;
  int64_t quant_min;
  int64_t quant_max;

  // The values, or, with grad, the gradient of input; then sums gets that of the factor.
  Tensor run(const Tensor* grad_, std::vector<double>* sums) const {
    const Float type = float_type(op, "input", input.scalar_type());
    check_limits(op, quant_min, quant_max, kInt32Min, kInt32Max);
    if (input.dim() == 0) fail(std::string(op) + ": input has no channels", "[]", "at least one dimension");
    const int64_t channels = input.size(0);
    check_count(op, "factor", factor, channels);
    QParams qparams(op, scale, zero_point, scale.numel() == 1 ? 1 : channels);
    for (const int32_t z : qparams.zero_point) check_zero_point(op, z, quant_min, quant_max);
    if (qparams.scale.size() == 1) {
      qparams.scale.resize(channels, qparams.scale.front());
      qparams.zero_point.resize(channels, qparams.zero_point.front());
    }
    if (!factor.is_cpu()) {
      fail(std::string(op) + ": factor lies on another device than the tensor", "no CPU tensor", "cpu");
    }
    std::vector<double> factors;
    const int64_t step = factor.dim() == 0 ? 0 : factor.stride(0);
    visit_numbers(op, "factor", factor, [&](const auto* values) {
      for (int64_t c = 0; c < channels; ++c) factors.push_back(static_cast<double>(values[c * step]));
    });
    const Tensor x = row_major(input);
    const Tensor result = empty_like_dense(x, x.scalar_type());
    if (x.numel() == 0) return result;
    const Tensor grad = grad_ ? row_major(*grad_) : Tensor();
    const QParamsOfEitherType arrays(type, qparams, quant_min, quant_max);
    const FoldedArgs args{type,
                          x.const_data_ptr(),
                          grad_ ? grad.const_data_ptr() : nullptr,
                          result.mutable_data_ptr(),
                          sums ? sums->data() : nullptr,
                          factors.data(),
                          x.numel() / channels,
                          arrays.floats.view(),
                          arrays.doubles.view()};
    const auto loop = FXQ_LOOP(fake_quantize_folded_loop);
    const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(args.inner, 1));
    torch::stable::parallel_for(0, channels, grain, [&](int64_t first, int64_t last) { loop(args, first, last); });
    return result;
  }
};

Tensor forward_cpu(const Tensor& input, const Tensor& factor, const Tensor& scale, const Tensor& zero_point,
                   int64_t quant_min, int64_t quant_max) {
  return Call{kOp, input, factor, scale, zero_point, quant_min, quant_max}.run(nullptr, nullptr);
}

std::tuple<Tensor, Tensor> backward_cpu(const Tensor& grad, const Tensor& input, const Tensor& factor,
                                        const Tensor& scale, const Tensor& zero_point, int64_t quant_min,
                                        int64_t quant_max) {
  check_gradient(kBackwardOp, grad, input);
  std::vector<double> sums(factor.numel());
  const Tensor dx = Call{kBackwardOp, input, factor, scale, zero_point, quant_min, quant_max}.run(&grad, &sums);
  const Tensor of_factor = empty_as(factor, sizes_of(factor), false, ScalarType::Double);
  std::copy(sums.begin(), sums.end(), of_factor.mutable_data_ptr<double>());
  return {dx, torch::stable::to(of_factor, factor.scalar_type())};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fxquant, CPU, m) {
  m.impl("fake_quantize_folded", TORCH_BOX(&forward_cpu));
  m.impl("fake_quantize_folded_backward", TORCH_BOX(&backward_cpu));
}

}  // namespace fxquant
