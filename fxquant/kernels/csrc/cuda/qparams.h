// Scale and zero point of a call, as device code reads them. Their values are never read on the host, which would wait
// for the GPU; so they are not checked either.
#pragma once
#include <torch/csrc/stable/ops.h>

#include <optional>

#include "common/checks.h"
#include "common/layout.h"
#include "common/numbers.h"
#include "common/tensor.h"
#include "cuda/host_device.h"
#include "math/affine.h"

namespace fxquant {

// What a kernel gets by value. Without arrays one scale and zero point hold for all.
struct DeviceQParams {
  const float* scales = nullptr;
  const int32_t* zero_points = nullptr;
  float scale = 0;
  int32_t zero_point = 0;

  FXQ_MEMBER float scale_at(int64_t c) const { return scales ? scales[c] : scale; }
  FXQ_MEMBER int32_t zero_point_at(int64_t c) const { return zero_points ? zero_points[c] : zero_point; }
};

// Owns the arrays until the kernel is on its stream.
struct QParams {
  std::optional<Tensor> scale;
  std::optional<Tensor> zero_point;
  DeviceQParams device;

  QParams(double scale_, int64_t zero_point_) {
    device.scale = static_cast<float>(scale_);
    device.zero_point = static_cast<int32_t>(zero_point_);
  }

  QParams(const char* op, const Tensor& x, const Tensor& scale_, const Tensor& zero_point_, int64_t channels) {
    check_count(op, "scale", scale_, channels);
    check_count(op, "zero_point", zero_point_, channels);
    check_device(op, "scale", x, scale_);
    check_device(op, "zero_point", x, zero_point_);
    scale = torch::stable::contiguous(torch::stable::to(scale_, ScalarType::Float));
    zero_point = torch::stable::contiguous(torch::stable::to(zero_point_, ScalarType::Int));
    device.scales = scale->const_data_ptr<float>();
    device.zero_points = zero_point->const_data_ptr<int32_t>();
  }

 private:
  static void check_device(const char* op, const char* argument, const Tensor& x, const Tensor& values) {
    if (values.is_cpu() != x.is_cpu() || values.get_device_index() != x.get_device_index()) {
      fail(std::string(op) + ": " + argument + " lies on another device than the tensor",
           values.is_cuda() ? "cuda:" + std::to_string(values.get_device_index()) : "no CUDA tensor",
           "cuda:" + std::to_string(x.get_device_index()));
    }
  }
};

// The qparams of each element of a tensor, for kernels that compute in Real.
template <typename Real>
struct DeviceAffine {
  DeviceQParams qparams;
  Layout layout;
  Real low;
  Real high;

  DeviceAffine(const QParams& qparams_, const Layout& layout_, int64_t quant_min, int64_t quant_max)
      : qparams(qparams_.device),
        layout(layout_),
        low(within<Real>(quant_min, 1)),
        high(within<Real>(quant_max, -1)) {}

  FXQ_MEMBER Affine<Real> of_channel(int64_t c) const {
    const Real scale = static_cast<Real>(qparams.scale_at(c));
    return {scale, Real{1} / scale, static_cast<Real>(qparams.zero_point_at(c)), low, high};
  }
};

// Follows neighbouring elements from the i-th on: of which channel each is. Divides once for all of them.
class ChannelIterator {
 public:
  FXQ_MEMBER ChannelIterator(const Layout& layout, int64_t i)
      : layout_(layout),
        channel_(layout.channels == 1 ? 0 : (i / layout.inner) % layout.channels),
        left_(layout.channels == 1 ? layout.inner : layout.inner - i % layout.inner) {}

  FXQ_MEMBER int64_t channel() const { return channel_; }

  // Goes on by one element; whether that one is of another channel.
  FXQ_MEMBER bool next() {
    if (--left_ > 0) return false;
    left_ = layout_.inner;
    channel_ = channel_ + 1 < layout_.channels ? channel_ + 1 : 0;
    return true;
  }

 private:
  const Layout& layout_;
  int64_t channel_;
  int64_t left_;  // elements before the next channel begins
};

}  // namespace fxquant
