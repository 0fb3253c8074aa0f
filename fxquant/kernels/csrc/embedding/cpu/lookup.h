// Values of indices and offsets, looked at before any row is.
#pragma once
#include "embedding/lookup_checks.h"

namespace fxquant {

inline void check_index_values(const char* op, const Tensor& indices, int64_t rows) {
  const int64_t* values = indices.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < indices.numel(); ++i) {
    if (values[i] < 0 || values[i] >= rows) {
      fail(std::string(op) + ": an index is out of range", values[i],
           rows == 0 ? "none: there are no rows" : "0 to " + std::to_string(rows - 1));
    }
  }
}

inline void check_offset_values(const char* op, const Tensor& offsets, int64_t count) {
  const int64_t* values = offsets.const_data_ptr<int64_t>();
  int64_t before = 0;
  for (int64_t i = 0; i < offsets.numel(); ++i) {
    const bool is_first = i == 0;
    const bool is_last = i + 1 == offsets.numel();
    if (values[i] < before || (is_first && values[i] != 0) || (is_last && values[i] != count) || values[i] > count) {
      fail(std::string(op) + ": offsets are no borders between bags", "offsets[" + std::to_string(i) + "] = " +
           std::to_string(values[i]), "0, then ascending, to the number of indices, " + std::to_string(count));
    }
    before = values[i];
  }
}

}  // namespace fxquant
