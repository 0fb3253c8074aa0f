// Argument checks. Every message says which operator, what is wrong, what was given and what it should be, laid out
// like those of fxquant/errors.py; fxquant/kernels/checks.py says the same in the same words.
#pragma once
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

namespace fxquant {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

template <typename Got>
[[noreturn]] void fail(const std::string& what, const Got& got, const std::string& expected) {
  std::ostringstream text;
  text << what << "\n  got:      " << got << "\n  expected: " << expected;
  throw std::runtime_error(text.str());
}

inline std::string name_of(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Byte: return "torch.uint8";
    case ScalarType::Char: return "torch.int8";
    case ScalarType::Short: return "torch.int16";
    case ScalarType::Int: return "torch.int32";
    case ScalarType::Long: return "torch.int64";
    case ScalarType::Half: return "torch.float16";
    case ScalarType::BFloat16: return "torch.bfloat16";
    case ScalarType::Float: return "torch.float32";
    case ScalarType::Double: return "torch.float64";
    case ScalarType::Bool: return "torch.bool";
    default: return "another dtype";
  }
}

inline std::string shape_of(const Tensor& x) {
  std::string text = "[";
  for (int64_t d = 0; d < x.dim(); ++d) text += (d ? ", " : "") + std::to_string(x.size(d));
  return text + "]";
}

[[noreturn]] inline void fail_dtype(const char* op, const char* argument, ScalarType got, const char* expected) {
  fail(std::string(op) + ": " + argument + " has the wrong dtype", name_of(got), expected);
}

// The axis as 0 <= axis < dim.
inline int64_t check_axis(const char* op, int64_t axis, int64_t dim) {
  if (axis < -dim || axis >= dim) {
    fail(std::string(op) + ": axis is out of range", axis, "a dimension of the tensor, which has " + std::to_string(dim));
  }
  return axis < 0 ? axis + dim : axis;
}

inline std::optional<int64_t> check_axis(const char* op, std::optional<int64_t> axis, int64_t dim) {
  return axis.has_value() ? std::optional<int64_t>(check_axis(op, *axis, dim)) : std::nullopt;
}

// A qparam has one value for each channel.
inline void check_count(const char* op, const char* argument, const Tensor& values, int64_t channels) {
  if (values.numel() != channels || values.dim() > 1) {
    fail(std::string(op) + ": " + argument + " has the wrong shape", shape_of(values),
         "[" + std::to_string(channels) + "]");
  }
}

inline void check_limits(const char* op, int64_t quant_min, int64_t quant_max, int64_t lowest, int64_t highest) {
  if (quant_min > quant_max) {
    fail(std::string(op) + ": quant_min is above quant_max",
         std::to_string(quant_min) + " and " + std::to_string(quant_max), "quant_min <= quant_max");
  }
  if (quant_min < lowest || quant_max > highest) {
    fail(std::string(op) + ": quant_min and quant_max do not fit the integers they limit",
         std::to_string(quant_min) + " and " + std::to_string(quant_max),
         std::to_string(lowest) + " to " + std::to_string(highest));
  }
}

inline void check_zero_point(const char* op, int64_t zero_point, int64_t quant_min, int64_t quant_max) {
  if (zero_point < quant_min || zero_point > quant_max) {
    fail(std::string(op) + ": a zero point lies outside [quant_min, quant_max]", zero_point,
         std::to_string(quant_min) + " to " + std::to_string(quant_max));
  }
}

constexpr int64_t kInt32Min = std::numeric_limits<int32_t>::min();
constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();

// The limits fit the integer dtype that stores the result.
inline void check_integers(const char* op, int64_t quant_min, int64_t quant_max, ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Byte: return check_limits(op, quant_min, quant_max, 0, 255);
    case ScalarType::Char: return check_limits(op, quant_min, quant_max, -128, 127);
    case ScalarType::Short: return check_limits(op, quant_min, quant_max, -32768, 32767);
    default: return check_limits(op, quant_min, quant_max, kInt32Min, kInt32Max);
  }
}

inline bool same_shape(const Tensor& a, const Tensor& b) {
  bool same = a.dim() == b.dim();
  for (int64_t d = 0; same && d < a.dim(); ++d) same = a.size(d) == b.size(d);
  return same;
}

inline void check_gradient(const char* op, const Tensor& grad, const Tensor& x) {
  if (grad.scalar_type() != x.scalar_type()) {
    fail(std::string(op) + ": grad has the wrong dtype", name_of(grad.scalar_type()),
         name_of(x.scalar_type()) + ", as input");
  }
  if (!same_shape(grad, x)) {
    fail(std::string(op) + ": grad has the wrong shape", shape_of(grad), shape_of(x) + ", as input");
  }
}

}  // namespace fxquant
