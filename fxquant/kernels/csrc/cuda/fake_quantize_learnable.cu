#include <cub/block/block_reduce.cuh>
#include <torch/csrc/stable/library.h>

#include <tuple>

#include "launch.h"
#include "numbers.h"
#include "qparams.h"

namespace fxquant {
namespace {

constexpr const char* kOp = "fxquant::fake_quantize_learnable_backward";
constexpr int kThreads = 256;
constexpr int64_t kMostParts = 1024;  // blocks that share one channel

struct Sums {
  double scale;
  double clipped;
};

struct Add {
  __device__ Sums operator()(const Sums& a, const Sums& b) const {
    return {a.scale + b.scale, a.clipped + b.clipped};
  }
};

using Reduce = cub::BlockReduce<Sums, kThreads>;

template <typename T>
struct Backward {
  using Real = typename Number<T>::Real;
  const T* grad;
  const T* x;
  T* dx;
  DeviceGrids<Real> grids;
  Sums* sums;  // [channels, parts]

  // Stores the gradient of element i, and answers with what it adds to those of its grid.
  __device__ Sums operator()(int64_t i) const {
    const Affine<Real> a = grids.at(i);
    const Real value = Number<T>::load(x[i]);
    const Real incoming = Number<T>::load(grad[i]);
    const Real step = to_grid(value, a);
    const bool passes = inside(step, a);
    Number<T>::store(passes ? incoming : Real{0}, dx[i]);
    const Real of_scale = incoming * slope_of_scale(value, step, a);
    return {static_cast<double>(of_scale), passes ? 0.0 : static_cast<double>(incoming)};
  }
};

// Block (p, c) takes part p of channel c: its elements lie in outer stretches of inner ones.
template <typename T>
__global__ void run_parts(Backward<T> backward, Layout layout) {
  __shared__ typename Reduce::TempStorage storage;
  const int64_t count = layout.outer * layout.inner;
  for (int64_t c = blockIdx.y; c < layout.channels; c += gridDim.y) {
    Sums sums{0, 0};
    for (int64_t j = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x; j < count;
         j += static_cast<int64_t>(gridDim.x) * kThreads) {
      const int64_t i = ((j / layout.inner) * layout.channels + c) * layout.inner + j % layout.inner;
      sums = Add{}(sums, backward(i));
    }
    sums = Reduce(storage).Reduce(sums, Add{});
    if (threadIdx.x == 0) backward.sums[c * gridDim.x + blockIdx.x] = sums;
    __syncthreads();
  }
}

// Adds the parts of each channel in their order, so that the result is the same every time.
struct Finish {
  const Sums* sums;
  int64_t parts;
  DeviceQParams qparams;
  double factor;
  float* of_scale;
  float* of_zero_point;

  __device__ void operator()(int64_t c) const {
    Sums total{0, 0};
    for (int64_t p = 0; p < parts; ++p) total = Add{}(total, sums[c * parts + p]);
    of_scale[c] = static_cast<float>(total.scale * factor);
    of_zero_point[c] = static_cast<float>(total.clipped * factor * -static_cast<double>(qparams.scale_at(c)));
  }
};

struct Call {
  const Tensor& grad;
  const Tensor& x;
  const Tensor& dx;
  const QParams& qparams;
  Layout layout;
  int64_t quant_min;
  int64_t quant_max;
  int64_t parts;
  Sums* sums;

  template <typename T>
  void go() const {
    const Backward<T> backward{static_cast<const T*>(grad.const_data_ptr()), static_cast<const T*>(x.const_data_ptr()),
                               static_cast<T*>(dx.mutable_data_ptr()),
                               DeviceGrids<typename Number<T>::Real>(qparams, layout, quant_min, quant_max), sums};
    const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
    void* stream = nullptr;
    STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(x.get_device_index(), &stream));
    const dim3 blocks(static_cast<unsigned>(parts), static_cast<unsigned>(std::min<int64_t>(layout.channels, 65535)));
    run_parts<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(backward, layout);
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  }
};

std::tuple<Tensor, Tensor, Tensor> backward_cuda(const Tensor& grad_, const Tensor& x_, const Tensor& scale,
                                                 const Tensor& zero_point, std::optional<int64_t> axis,
                                                 int64_t quant_min, int64_t quant_max, double grad_factor) {
  const Float type = float_type(kOp, "input", x_.scalar_type());
  check_gradient(kOp, grad_, x_);
  check_learnable_limits(kOp, quant_min, quant_max);
  if (axis.has_value()) axis = check_axis(kOp, *axis, x_.dim());
  const int64_t channels = axis.has_value() ? x_.size(*axis) : 1;
  const QParams qparams(kOp, x_, scale, zero_point, channels);
  const Tensor x = dense(x_);
  const Tensor grad = in_strides_of(x, grad_);
  const Tensor dx = empty_like_dense(x, x.scalar_type());
  const Layout layout = layout_of(x, axis);
  Tensor of_scale = torch::stable::new_empty(scale, scale.sizes(), ScalarType::Float);
  Tensor of_zero_point = torch::stable::new_empty(zero_point, zero_point.sizes(), ScalarType::Float);
  const int64_t per_channel = std::max<int64_t>(1, (layout.outer * layout.inner + kThreads - 1) / kThreads);
  const int64_t parts = std::min(per_channel, std::max<int64_t>(1, kMostParts / std::max<int64_t>(channels, 1)));
  const int64_t numbers[] = {channels, parts, 2};
  const Tensor sums = torch::stable::new_zeros(x, {numbers, 3}, ScalarType::Double);
  Sums* partial = static_cast<Sums*>(sums.mutable_data_ptr());
  if (x.numel() > 0) {
    with_float(type, Call{grad, x, dx, qparams, layout, quant_min, quant_max, parts, partial});
  }
  for_each(x, channels, Finish{partial, parts, qparams.device, grad_factor, of_scale.mutable_data_ptr<float>(),
                               of_zero_point.mutable_data_ptr<float>()});
  return {dx, torch::stable::to(of_scale, scale.scalar_type()),
          torch::stable::to(of_zero_point, zero_point.scalar_type())};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fxquant, CUDA, m) {
  m.impl("fake_quantize_learnable_backward", TORCH_BOX(&backward_cuda));
}

}  // namespace fxquant
