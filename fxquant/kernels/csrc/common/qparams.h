// Scale and zero point of a call, checked and brought to the types that the loops want.
#pragma once
#include <torch/csrc/stable/tensor.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "checks.h"
#include "tensor.h"

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
    default: fail(std::string(op) + ": " + argument + " has a dtype that holds no numbers", name_of(x.scalar_type()),
                  "an integer or floating dtype");
  }
}

inline void check_count(const char* op, const char* argument, const Tensor& x, int64_t channels) {
  if (x.numel() != channels || x.dim() > 1) {
    std::string shape = "[";
    for (int64_t d = 0; d < x.dim(); ++d) shape += (d ? ", " : "") + std::to_string(x.size(d));
    fail(std::string(op) + ": " + argument + " has the wrong shape", shape + "]", "[" + std::to_string(channels) + "]");
  }
}

// CPU qparams: scale as float32 and zero point as int32, [channels] each.
struct QParams {
  std::vector<float> scale;
  std::vector<int32_t> zero_point;

  QParams(const char* op, const Tensor& scale_, const Tensor& zero_point_, int64_t channels) {
    check_count(op, "scale", scale_, channels);
    check_count(op, "zero_point", zero_point_, channels);
    if (!scale_.is_cpu() || !zero_point_.is_cpu()) {
      fail(std::string(op) + ": scale and zero_point lie on another device than x", "another device", "cpu");
    }
    const Tensor s = dense(scale_);
    const Tensor z = dense(zero_point_);
    visit_numbers(op, "scale", s, [&](const auto* values) {
      for (int64_t c = 0; c < channels; ++c) scale.push_back(static_cast<float>(values[c]));
    });
    visit_numbers(op, "zero_point", z, [&](const auto* values) {
      for (int64_t c = 0; c < channels; ++c) zero_point.push_back(integral(op, static_cast<double>(values[c])));
    });
  }

 private:
  static int32_t integral(const char* op, double value) {
    if (!(value == std::nearbyint(value)) || value < std::numeric_limits<int32_t>::min() ||
        value > std::numeric_limits<int32_t>::max()) {
      fail(std::string(op) + ": a zero point is no int32", value, "integers of 32 bits, in any integer or floating dtype");
    }
    return static_cast<int32_t>(value);
  }
};

}  // namespace fxquant
