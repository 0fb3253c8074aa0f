// Argument checks. Every message says which operator, what is wrong, what was given and what it should be, laid out
// like those of fxquant/errors.py; fxquant/kernels/checks.py says the same in the same words.
#pragma once
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <sstream>
#include <stdexcept>
#include <string>

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

// The axis as 0 <= axis < dim.
inline int64_t check_axis(const char* op, int64_t axis, int64_t dim) {
  if (axis < -dim || axis >= dim) {
    fail(std::string(op) + ": axis is out of range", axis,
         "a dimension of x, which has " + std::to_string(dim));
  }
  return axis < 0 ? axis + dim : axis;
}

}  // namespace fxquant
