// What the bindings of embedding share: its arguments, their checks, and its result.
#pragma once
#include "common/call.h"
#include "embedding/lookup_checks.h"

namespace fxquant {

struct EmbeddingCall {
  Tensor weight;
  Tensor scale;
  Tensor zero_point;
  Tensor indices;
  int64_t bits;
  int64_t columns;
};

// A call, checked but for the values of its indices.
struct Embedding {
  static constexpr const char* kOp = "fxquant::embedding";

  CheckedTable table;
  Tensor indices;  // int64, contiguous
  Tensor y;        // [*indices, columns]
};

inline Embedding prepare_embedding(const EmbeddingCall& call) {
  const CheckedTable table(Embedding::kOp, call);
  const Tensor indices = checked_indices(Embedding::kOp, "indices", call.indices, table.weight);
  std::vector<int64_t> sizes = sizes_of(indices);
  sizes.push_back(call.columns);
  return {table, indices, empty_rows(table, sizes)};
}

}  // namespace fxquant
