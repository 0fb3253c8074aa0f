// Scale and zero point of a call, read on the CPU, checked, and brought to the arrays that loops want.
#pragma once
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "common/checks.h"
#include "common/numbers.h"
#include "common/tensor.h"
#include "cpu/loops/channels.h"

namespace fxquant {

// Calls f with a typed pointer to the data of a CPU tensor of numbers.
template <typename F>
void visit_numbers(const char* op, const char* argument, const Tensor& x, const F& f) {
  switch (x.scalar_type()) {
    case ScalarType::Byte: return f(x.const_data_ptr<uint8_t>());
    case ScalarType::Char: return f(x.const_data_ptr<int8_t>());
    case ScalarType::Short: return f(x.const_data_ptr<int16_t>());
    case ScalarType::Int: return f(x.const_data_ptr<int32_t>());
    case ScalarType::Long: return f(x.const_data_ptr<int64_t>());
    case ScalarType::Half: return f(x.const_data_ptr<torch::headeronly::Half>());
    case ScalarType::BFloat16: return f(x.const_data_ptr<torch::headeronly::BFloat16>());
    case ScalarType::Float: return f(x.const_data_ptr<float>());
    case ScalarType::Double: return f(x.const_data_ptr<double>());
    default: fail_dtype(op, argument, x.scalar_type(), "an integer or floating dtype");
  }
}

// Scale as float32 and zero point as int32, [channels] each.
struct QParams {
  std::vector<float> scale;
  std::vector<int32_t> zero_point;

  QParams(double scale_, int64_t zero_point_)
      : scale{float_value(scale_)}, zero_point{static_cast<int32_t>(zero_point_)} {}

  // Of a tensor on the CPU; that of CUDA takes the same arguments.
  QParams(const char* op, const Tensor&, const Tensor& scale_, const Tensor& zero_point_, int64_t channels) {
    check_count(op, "scale", scale_, channels);
    check_count(op, "zero_point", zero_point_, channels);
    check_cpu(op, "scale", scale_);
    check_cpu(op, "zero_point", zero_point_);
    scale.reserve(channels);
    zero_point.reserve(channels);
    const auto step_of = [](const Tensor& values) { return values.dim() == 0 ? 0 : values.stride(0); };
    visit_numbers(op, "scale", scale_, [&, step = step_of(scale_)](const auto* values) {
      for (int64_t c = 0; c < channels; ++c) scale.push_back(float_value(values[c * step]));
    });
    visit_numbers(op, "zero_point", zero_point_, [&, step = step_of(zero_point_)](const auto* values) {
      for (int64_t c = 0; c < channels; ++c) zero_point.push_back(integral(op, static_cast<double>(values[c * step])));
    });
  }

  void check_zero_points(const char* op, int64_t quant_min, int64_t quant_max) const {
    for (const int32_t z : zero_point) check_zero_point(op, z, quant_min, quant_max);
  }

  // One scale and zero point become those of each channel.
  void expand(int64_t channels) {
    repeat(scale, channels);
    repeat(zero_point, channels);
  }

  QParams every_second(size_t first) const {
    QParams half;
    half.scale.reserve(scale.size() / 2 + 1);
    half.zero_point.reserve(scale.size() / 2 + 1);
    for (size_t c = first; c < scale.size(); c += 2) {
      half.scale.push_back(scale[c]);
      half.zero_point.push_back(zero_point[c]);
    }
    return half;
  }

  // Where channels lie side by side and are few, 2^n rows of them make one long one, for the sake of the loops.
  void lengthen_rows(Layout& layout) {
    constexpr int64_t kLarge = 65536;
    const int64_t enough = layout.numel() < kLarge ? 256 : 1024;
    if (layout.inner != 1 || layout.channels <= 1 || layout.channels >= enough) return;
    const int64_t channels = layout.channels;
    int64_t times = 1;
    while (channels * times < enough) times *= 2;
    repeat(scale, times);
    repeat(zero_point, times);
    layout.outer = (layout.outer + times - 1) / times;  // the last row may be a part
    layout.channels = channels * times;
  }

 private:
  QParams() = default;

  template <typename Number>
  static void repeat(std::vector<Number>& values, int64_t times) {
    const size_t count = values.size();
    values.resize(count * times);
    for (size_t i = count; i < values.size(); i += count) std::copy_n(values.begin(), count, values.begin() + i);
  }

  // Loops rely on the bits of the one NaN.
  template <typename Number>
  static float float_value(Number value) {
    const float x = static_cast<float>(value);
    return x == x ? x : std::numeric_limits<float>::quiet_NaN();
  }

  static void check_cpu(const char* op, const char* argument, const Tensor& values) {
    if (!values.is_cpu()) {
      fail(std::string(op) + ": " + argument + " lies on another device than the tensor", "no CPU tensor", "cpu");
    }
  }

  static int32_t integral(const char* op, double value) {
    if (!(value == std::nearbyint(value)) || value < kInt32Min || value > kInt32Max) {
      fail(std::string(op) + ": a zero point is no int32", value,
           "integers of 32 bits, in any integer or floating dtype");
    }
    return static_cast<int32_t>(value);
  }
};

// The arrays behind ChannelQParams<Real>.
template <typename Real>
struct QParamsArrays {
  std::vector<Real> scale;
  std::vector<Real> inverse;
  std::vector<Real> zero_point;
  Real low = 0;
  Real high = 0;

  QParamsArrays() = default;

  QParamsArrays(const QParams& qparams, int64_t quant_min, int64_t quant_max)
      : scale(qparams.scale.begin(), qparams.scale.end()),
        zero_point(qparams.zero_point.begin(), qparams.zero_point.end()),
        low(within<Real>(quant_min, 1)),
        high(within<Real>(quant_max, -1)) {
    inverse.resize(scale.size());
    for (size_t c = 0; c < scale.size(); ++c) inverse[c] = Real{1} / scale[c];
  }

  ChannelQParams<Real> view() const { return {scale.data(), inverse.data(), zero_point.data(), low, high}; }
};

// The arrays behind PairedQParams<float>, which only bfloat16 with channels side by side needs.
struct PairedQParamsArrays {
  QParamsArrays<float> even;
  QParamsArrays<float> odd;

  PairedQParamsArrays(Float type, const Layout& layout, const QParams& qparams, int64_t quant_min, int64_t quant_max) {
    if (type != Float::kBFloat16 || layout.inner != 1 || layout.channels == 1) return;
    even = QParamsArrays<float>(qparams.every_second(0), quant_min, quant_max);
    odd = QParamsArrays<float>(qparams.every_second(1), quant_min, quant_max);
  }

  PairedQParams<float> view() const { return {even.view(), odd.view()}; }
};

// The qparams in both precisions; only the one that x needs is filled.
struct QParamsOfEitherType {
  QParamsArrays<float> floats;
  QParamsArrays<double> doubles;

  QParamsOfEitherType(Float type, const QParams& qparams, int64_t quant_min, int64_t quant_max) {
    if (type == Float::kDouble) {
      doubles = QParamsArrays<double>(qparams, quant_min, quant_max);
    } else {
      floats = QParamsArrays<float>(qparams, quant_min, quant_max);
    }
  }
};

}  // namespace fxquant
