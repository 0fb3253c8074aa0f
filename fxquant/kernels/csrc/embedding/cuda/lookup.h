// One value of a table, as device code reads it.
#pragma once
#include "cuda/host_device.h"
#include "embedding/lookup.h"
#include "math/half.h"
#include "math/lookup.h"

namespace fxquant {

// Indices are not looked at on the host, which would wait for the GPU: one that is out of range gives NaN.
struct DeviceTable {
  LookupTable table;
  int64_t rows;

  FXQ_MEMBER float at(int64_t row, int64_t column) const {
    if (row < 0 || row >= rows) return float_of_bits(0x7fffffff);
    const int32_t byte = table.bytes[row * table.row_bytes + (table.nibbles ? column / 2 : column)];
    const int32_t q = table.nibbles      ? nibble((byte >> (column % 2 * 4)) & 15, table.is_signed)
                      : table.is_signed ? static_cast<int8_t>(byte)
                                        : byte;
    const int64_t qparams_row = table.per_tensor ? 0 : row;
    return dequantize_float_zero_point(q, table.scale[qparams_row], table.zero_point[qparams_row]);
  }
};

}  // namespace fxquant
