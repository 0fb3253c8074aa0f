// What the bindings of embedding_bag share: its arguments, their checks, and its result.
#pragma once
#include <optional>

#include "common/call.h"
#include "embedding/lookup_checks.h"

namespace fxquant {

struct EmbeddingBagCall {
  Tensor weight;
  Tensor scale;
  Tensor zero_point;
  Tensor indices;
  Tensor offsets;
  int64_t bits;
  int64_t columns;
  int64_t mode;
  std::optional<Tensor> per_sample_weights;
  std::optional<int64_t> padding_idx;
};

// A call, checked but for the values of its indices and offsets.
struct EmbeddingBag {
  static constexpr const char* kOp = "fxquant::embedding_bag";

  CheckedTable table;
  Tensor indices;  // int64 [n]
  Tensor offsets;  // int64 [bags + 1]
  std::optional<Tensor> weights;
  BagMode mode;
  int64_t padding_idx;  // -1: there is none
  Tensor y;             // [bags, columns]

  Bags bags() const {
    return {indices.const_data_ptr<int64_t>(), offsets.const_data_ptr<int64_t>(),
            weights.has_value() ? weights->const_data_ptr<float>() : nullptr, padding_idx, mode};
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

inline EmbeddingBag prepare_embedding_bag(const EmbeddingBagCall& call) {
  constexpr const char* op = EmbeddingBag::kOp;
  const CheckedTable table(op, call);
  const BagMode mode = bag_mode(op, call.mode);
  const Tensor indices = checked_indices(op, "indices", call.indices, table.weight);
  const Tensor offsets = checked_indices(op, "offsets", call.offsets, table.weight);
  if (indices.dim() != 1) fail(std::string(op) + ": indices has the wrong shape", shape_of(indices), "one dimension");
  if (offsets.dim() != 1 || offsets.numel() == 0) {
    fail(std::string(op) + ": offsets has the wrong shape", shape_of(offsets), "[bags + 1]");
  }
  std::optional<Tensor> weights;
  if (call.per_sample_weights.has_value()) {
    weights = checked_sample_weights(op, *call.per_sample_weights, indices, mode);
  }
  const Tensor y = empty_rows(table, {offsets.numel() - 1, call.columns});
  return {table, indices, offsets, weights, mode, call.padding_idx.value_or(-1), y};
}

}  // namespace fxquant
