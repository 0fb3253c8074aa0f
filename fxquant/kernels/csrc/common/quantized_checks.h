// Checks of int8 operators: quantized tensors, and qparams given as numbers. The words of fxquant/kernels/arithmetic.py.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "common/checks.h"
#include "math/requantize.h"

namespace fxquant {

inline void check_quantized(const char* op, const std::string& argument, const Tensor& x) {
  if (x.scalar_type() != ScalarType::Byte && x.scalar_type() != ScalarType::Char) {
    fail(std::string(op) + ": " + argument + " has the wrong dtype", name_of(x.scalar_type()), "uint8 or int8");
  }
}

inline void check_same_dtype(const char* op, const std::string& argument, const Tensor& x, const Tensor& like) {
  if (x.scalar_type() != like.scalar_type()) {
    fail(std::string(op) + ": " + argument + " has the wrong dtype", name_of(x.scalar_type()),
         name_of(like.scalar_type()).substr(sizeof("torch.") - 1));
  }
}

inline void check_same_device(const char* op, const std::string& argument, const Tensor& x, const Tensor& like) {
  if (x.is_cpu() != like.is_cpu() || x.get_device_index() != like.get_device_index()) {
    fail(std::string(op) + ": the tensors lie on different devices", argument + " on another one", "one device");
  }
}

// "[2, 3, 4]", as Python prints a list.
template <typename Values>
std::string list_of(const Values& values) {
  std::string text = "[";
  for (size_t i = 0; i < values.size(); ++i) text += (i ? ", " : "") + std::to_string(values[i]);
  return text + "]";
}

// As many elements as a tensor can have: a product of sizes may pass 63 bits.
inline void check_result_sizes(const char* op, const std::vector<int64_t>& sizes) {
  int64_t room = std::numeric_limits<int64_t>::max() / 8;  // bytes of an element at most
  for (const int64_t size : sizes) {
    if (size > room) fail(std::string(op) + ": the result is too large", list_of(sizes), "a size that memory has room for");
    room /= std::max<int64_t>(size, 1);
  }
}

inline int32_t smallest_of(ScalarType dtype) { return dtype == ScalarType::Byte ? 0 : -128; }

// The scale as float32. prefix stands before "scale" and "zero_point" in the names of the arguments.
inline float check_qparams(const char* op, const std::string& prefix, double scale, int64_t zero_point,
                        ScalarType dtype) {
  const float rounded = static_cast<float>(scale);
  if (!(rounded >= std::numeric_limits<float>::min() && rounded <= std::numeric_limits<float>::max())) {
    fail(std::string(op) + ": " + prefix + "scale is unusable", scale, "a positive, normal float32");
  }
  const int64_t low = smallest_of(dtype);
  if (zero_point < low || zero_point > low + 255) {
    fail(std::string(op) + ": " + prefix + "zero_point is out of range", zero_point,
         std::to_string(low) + " to " + std::to_string(low + 255));
  }
  return rounded;
}

inline OutputQParams check_output_qparams(const char* op, double scale, int64_t zero_point, int64_t quant_min,
                                          int64_t quant_max, ScalarType dtype) {
  const float rounded = check_qparams(op, "", scale, zero_point, dtype);
  const int64_t low = smallest_of(dtype);
  if (quant_min < low || quant_min > quant_max || quant_max > low + 255) {
    fail(std::string(op) + ": quant_min and quant_max are out of range",
         "[" + std::to_string(quant_min) + ", " + std::to_string(quant_max) + "]",
         "quant_min <= quant_max, both in " + std::to_string(low) + " to " + std::to_string(low + 255));
  }
  return {1.0f / rounded, static_cast<float>(quant_min - zero_point), static_cast<float>(quant_max - zero_point),
          static_cast<int32_t>(zero_point)};
}

// The qparams of both sides of a call that takes x and gives a result of its dtype.
struct RequantizeQParams {
  float x_scale;
  int32_t x_zero_point;
  OutputQParams y;
};

template <typename Call>
RequantizeQParams check_requantize(const char* op, const Call& c) {
  check_quantized(op, "x", c.x);
  const ScalarType dtype = c.x.scalar_type();
  const float x_scale = check_qparams(op, "x_", c.x_scale, c.x_zero_point, dtype);
  return {x_scale, static_cast<int32_t>(c.x_zero_point),
          check_output_qparams(op, c.scale, c.zero_point, c.quant_min, c.quant_max, dtype)};
}

// Checks the same where the result may also be float32, which needs no qparams.
inline OutputQParams check_output_or_float(const char* op, double scale, int64_t zero_point, int64_t quant_min,
                                           int64_t quant_max, ScalarType dtype) {
  if (dtype == ScalarType::Float) return {};
  if (dtype != ScalarType::Byte && dtype != ScalarType::Char) fail_dtype(op, "dtype", dtype, "uint8, int8 or float32");
  return check_output_qparams(op, scale, zero_point, quant_min, quant_max, dtype);
}

}  // namespace fxquant
