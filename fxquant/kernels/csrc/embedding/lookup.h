// Tables of quantized rows. No torch: for loops and CUDA alike.
#pragma once
#include <cstdint>

namespace fxquant {

struct LookupTable {
  const uint8_t* bytes;  // [rows, row_bytes]: a value each, or two of 4 bits, that of the even column in the lower half
  int64_t row_bytes;
  int64_t columns;
  bool nibbles;
  bool is_signed;
  const float* scale;       // [rows], or one for all
  const float* zero_point;  // likewise
  bool per_tensor;
};

enum class BagMode : int32_t { kSum, kMean, kMax };

struct Bags {
  const int64_t* indices;
  const int64_t* offsets;  // [bags + 1]
  const float* weights;    // of the indices, or null
  int64_t padding_idx;     // an index that counts for nothing; -1: there is none
  BagMode mode;
};

}  // namespace fxquant
