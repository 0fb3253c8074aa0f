// The table of embedding and embedding_bag, checked as fxquant/kernels/embedding/lookup.py checks it, in the same words.
#pragma once
#include <string>

#include "common/memory_format.h"
#include "common/quantized_checks.h"
#include "embedding/lookup.h"

namespace fxquant {

inline Tensor checked_qparam(const char* op, const char* argument, const Tensor& values, const Tensor& weight) {
  if (values.scalar_type() != ScalarType::Float) fail_dtype(op, argument, values.scalar_type(), "float32");
  if (values.dim() != 1 || (values.numel() != 1 && values.numel() != weight.size(0))) {
    fail(std::string(op) + ": " + argument + " has the wrong shape", shape_of(values),
         "[" + std::to_string(weight.size(0)) + "] or [1]");
  }
  check_same_device(op, argument, values, weight);
  return row_major(values);
}

// int32 or int64, as contiguous int64.
inline Tensor checked_indices(const char* op, const char* argument, const Tensor& indices, const Tensor& weight) {
  const ScalarType dtype = indices.scalar_type();
  if (dtype != ScalarType::Int && dtype != ScalarType::Long) fail_dtype(op, argument, dtype, "int32 or int64");
  check_same_device(op, argument, indices, weight);
  return row_major(dtype == ScalarType::Long ? indices : torch::stable::to(indices, ScalarType::Long));
}

// Owns what a LookupTable points to.
struct CheckedTable {
  Tensor weight;
  Tensor scale;
  Tensor zero_point;
  LookupTable table;

  template <typename Call>
  CheckedTable(const char* op, const Call& call)
      : weight(checked_weight(op, call.weight, call.bits, call.columns)),
        scale(checked_qparam(op, "scale", call.scale, weight)),
        zero_point(checked_qparam(op, "zero_point", call.zero_point, weight)) {
    if (scale.numel() != zero_point.numel()) {
      fail(std::string(op) + ": scale and zero_point have different shapes",
           shape_of(scale) + " and " + shape_of(zero_point), "one shape");
    }
    table = {static_cast<const uint8_t*>(weight.const_data_ptr()),
             weight.size(1),
             call.columns,
             call.bits == 4,
             weight.scalar_type() == ScalarType::Char,
             scale.const_data_ptr<float>(),
             zero_point.const_data_ptr<float>(),
             scale.numel() == 1};
  }

  int64_t rows() const { return weight.size(0); }

 private:
  static Tensor checked_weight(const char* op, const Tensor& weight, int64_t bits, int64_t columns) {
    check_quantized(op, "weight", weight);
    if (bits != 4 && bits != 8) fail(std::string(op) + ": bits is out of range", bits, "4 or 8");
    const int64_t bytes = bits == 4 ? columns / 2 + columns % 2 : columns;
    if (weight.dim() != 2 || columns < 0 || weight.size(1) != bytes) {
      fail(std::string(op) + ": weight has the wrong shape", shape_of(weight), "[rows, " + std::to_string(bytes) + "]");
    }
    return row_major(weight);
  }
};

// A result: float32, a row of the table for each index or bag.
inline Tensor empty_rows(const CheckedTable& table, const std::vector<int64_t>& sizes) {
  const Tensor y = empty_as(table.scale, sizes, false);
  prefer_huge_pages(y);
  return y;
}

}  // namespace fxquant
