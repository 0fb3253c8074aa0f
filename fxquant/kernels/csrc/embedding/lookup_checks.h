// Checks and tables of embedding and embedding_bag, for the CPU and for CUDA. The words of fxquant/kernels/embedding/lookup.py.
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

  CheckedTable(const char* op, const Tensor& weight_, const Tensor& scale_, const Tensor& zero_point_, int64_t bits,
               int64_t columns)
      : weight(checked_weight(op, weight_, bits, columns)),
        scale(checked_qparam(op, "scale", scale_, weight)),
        zero_point(checked_qparam(op, "zero_point", zero_point_, weight)) {
    if (scale.numel() != zero_point.numel()) {
      fail(std::string(op) + ": scale and zero_point have different shapes",
           shape_of(scale) + " and " + shape_of(zero_point), "one shape");
    }
    table = {static_cast<const uint8_t*>(weight.const_data_ptr()),
             weight.size(1),
             columns,
             bits == 4,
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

inline BagMode bag_mode(const char* op, int64_t mode) {
  if (mode < 0 || mode > 2) fail(std::string(op) + ": mode is out of range", mode, "0 (sum), 1 (mean) or 2 (max)");
  return static_cast<BagMode>(mode);
}

// float32 of the shape of the indices; only sums are weighted.
inline Tensor checked_sample_weights(const char* op, const Tensor& weights, const Tensor& indices, BagMode mode) {
  if (mode != BagMode::kSum) {
    fail(std::string(op) + ": only sums take per_sample_weights", mode == BagMode::kMean ? "mean" : "max", "sum");
  }
  if (weights.scalar_type() != ScalarType::Float) {
    fail_dtype(op, "per_sample_weights", weights.scalar_type(), "float32");
  }
  if (shape_of(weights) != shape_of(indices)) {
    fail(std::string(op) + ": per_sample_weights has the wrong shape", shape_of(weights), shape_of(indices));
  }
  check_same_device(op, "per_sample_weights", weights, indices);
  return row_major(weights);
}

// indices [n] and offsets [bags + 1]; their values are looked at on the CPU only.
inline int64_t check_bags(const char* op, const Tensor& indices, const Tensor& offsets) {
  if (indices.dim() != 1) fail(std::string(op) + ": indices has the wrong shape", shape_of(indices), "one dimension");
  if (offsets.dim() != 1 || offsets.numel() == 0) {
    fail(std::string(op) + ": offsets has the wrong shape", shape_of(offsets), "[bags + 1]");
  }
  return offsets.numel() - 1;
}

}  // namespace fxquant
