// Rows of a table as real numbers. No torch.
#pragma once
#include "../../common/lookup.h"
#include "../../math/lookup.h"
#include "blocks.h"

namespace fxquant {

template <typename Q>
static inline void bytes_to_real(const Q* FXQ_RESTRICT q, float* FXQ_RESTRICT y, int64_t count, float scale,
                                 float zero_point) {
  for (int64_t i = 0; i < count; ++i) y[i] = dequantize_real(q[i], scale, zero_point);
}

// Each half of a byte is one of 16 numbers, which are worked out once.
static inline void halves_to_real(const uint8_t* FXQ_RESTRICT q, float* FXQ_RESTRICT y, int64_t count, float scale,
                                  float zero_point, bool is_signed) {
  float numbers[16];
  for (int32_t i = 0; i < 16; ++i) numbers[i] = dequantize_real(nibble(i, is_signed), scale, zero_point);
  const int64_t pairs = count / 2;
  for (int64_t i = 0; i < pairs; ++i) {
    y[2 * i] = numbers[q[i] & 15];
    y[2 * i + 1] = numbers[q[i] >> 4];
  }
  if (count % 2) y[count - 1] = numbers[q[pairs] & 15];
}

// The columns first <= c < first + count of a row; first is even.
static inline void row_to_real(const LookupTable& table, int64_t row, int64_t first, int64_t count, float* y) {
  const uint8_t* q = table.bytes + row * table.row_bytes;
  const int64_t grid = table.one_grid ? 0 : row;
  const float scale = table.scale[grid];
  const float zero_point = table.zero_point[grid];
  if (table.halves) return halves_to_real(q + first / 2, y, count, scale, zero_point, table.is_signed);
  if (table.is_signed) {
    return bytes_to_real(reinterpret_cast<const int8_t*>(q) + first, y, count, scale, zero_point);
  }
  bytes_to_real(q + first, y, count, scale, zero_point);
}

}  // namespace fxquant
