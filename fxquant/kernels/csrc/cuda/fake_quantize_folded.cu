#include <cub/block/block_reduce.cuh>
#include <torch/csrc/stable/library.h>

#include <tuple>

#include "../math/folded.h"
#include "launch.h"
#include "numbers.h"
#include "qparams.h"

namespace fxquant {
namespace {

constexpr const char* kOp = "fxquant::fake_quantize_folded";
constexpr const char* kBackwardOp = "fxquant::fake_quantize_folded_backward";
constexpr int kThreads = 256;

template <typename T, typename Factor>
struct Body {
  using Real = typename Number<T>::Real;
  const T* x;
  const T* grad;  // null: the values are wanted
  T* result;
  const Factor* factor;
  Factor* of_factor;
  int64_t inner;
  DeviceQParams qparams;
  bool one_grid;
  Real low;
  Real high;

  __device__ Folded<Real> at(int64_t i, int64_t c) const {
    const int64_t g = one_grid ? 0 : c;
    const Real scale = static_cast<Real>(qparams.scale_at(g));
    const Affine<Real> a{scale, Real{1} / scale, static_cast<Real>(qparams.zero_point_at(g)), low, high};
    return folded(Number<T>::load(x[i]), static_cast<Real>(factor[c]), a);
  }

  __device__ void operator()(int64_t i) const { Number<T>::store(at(i, i / inner).value, result[i]); }
};

// One block for each channel, which adds up in a fixed order.
template <typename T, typename Factor>
__global__ void run_backward(Body<T, Factor> body, int64_t channels) {
  using Reduce = cub::BlockReduce<double, kThreads>;
  using Real = typename Number<T>::Real;
  __shared__ typename Reduce::TempStorage storage;
  for (int64_t c = blockIdx.x; c < channels; c += gridDim.x) {
    double sum = 0;
    for (int64_t j = threadIdx.x; j < body.inner; j += kThreads) {
      const int64_t i = c * body.inner + j;
      const Folded<Real> each = body.at(i, c);
      const Real incoming = Number<T>::load(body.grad[i]);
      Number<T>::store(each.passes ? incoming : Real{0}, body.result[i]);
      sum += static_cast<double>(incoming * each.slope);
    }
    sum = Reduce(storage).Sum(sum);
    if (threadIdx.x == 0) body.of_factor[c] = static_cast<Factor>(sum);
    __syncthreads();
  }
}

struct Call {
  const Tensor& x;
  const Tensor* grad;
  const Tensor& result;
  const Tensor& factor;
  const Tensor* of_factor;
  const QParams& qparams;
  bool one_grid;
  int64_t quant_min;
  int64_t quant_max;

  template <typename T>
  void go() const {
    using Real = typename Number<T>::Real;
    const int64_t channels = x.size(0);
    const Body<T, Real> body{static_cast<const T*>(x.const_data_ptr()),
                             grad ? static_cast<const T*>(grad->const_data_ptr()) : nullptr,
                             static_cast<T*>(result.mutable_data_ptr()),
                             factor.const_data_ptr<Real>(),
                             of_factor ? of_factor->mutable_data_ptr<Real>() : nullptr,
                             x.numel() / channels,
                             qparams.device,
                             one_grid,
                             within<Real>(quant_min, 1),
                             within<Real>(quant_max, -1)};
    if (!grad) return for_each(x, x.numel(), body);
    const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
    void* stream = nullptr;
    STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(x.get_device_index(), &stream));
    const unsigned blocks = static_cast<unsigned>(std::min<int64_t>(channels, 65535));
    run_backward<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(body, channels);
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  }
};

// The values, or, with grad, the gradients of input and factor.
std::tuple<Tensor, Tensor> run(const char* op, const Tensor* grad_, const Tensor& input, const Tensor& factor_,
                               const Tensor& scale, const Tensor& zero_point, int64_t quant_min, int64_t quant_max) {
  const Float type = float_type(op, "input", input.scalar_type());
  check_limits(op, quant_min, quant_max, kInt32Min, kInt32Max);
  if (input.dim() == 0) fail(std::string(op) + ": input has no channels", "[]", "at least one dimension");
  check_count(op, "factor", factor_, input.size(0));
  const bool one_grid = scale.numel() == 1;
  const QParams qparams(op, input, scale, zero_point, one_grid ? 1 : input.size(0));
  const ScalarType real = type == Float::kDouble ? ScalarType::Double : ScalarType::Float;
  const Tensor factor = torch::stable::contiguous(torch::stable::to(factor_, real));
  const Tensor x = torch::stable::contiguous(input);
  const Tensor result = empty_like_dense(x, x.scalar_type());
  const Tensor grad = grad_ ? torch::stable::contiguous(*grad_) : Tensor();
  const Tensor of_factor = torch::stable::new_zeros(factor, factor.sizes(), real);
  if (x.numel() > 0) {
    with_float(type, Call{x, grad_ ? &grad : nullptr, result, factor, &of_factor, qparams, one_grid, quant_min,
                          quant_max});
  }
  return {result, torch::stable::to(of_factor, factor_.scalar_type())};
}

Tensor forward_cuda(const Tensor& input, const Tensor& factor, const Tensor& scale, const Tensor& zero_point,
                    int64_t quant_min, int64_t quant_max) {
  return std::get<0>(run(kOp, nullptr, input, factor, scale, zero_point, quant_min, quant_max));
}

std::tuple<Tensor, Tensor> backward_cuda(const Tensor& grad, const Tensor& input, const Tensor& factor,
                                         const Tensor& scale, const Tensor& zero_point, int64_t quant_min,
                                         int64_t quant_max) {
  check_gradient(kBackwardOp, grad, input);
  return run(kBackwardOp, &grad, input, factor, scale, zero_point, quant_min, quant_max);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fxquant, CUDA, m) {
  m.impl("fake_quantize_folded", TORCH_BOX(&forward_cuda));
  m.impl("fake_quantize_folded_backward", TORCH_BOX(&backward_cuda));
}

}  // namespace fxquant
