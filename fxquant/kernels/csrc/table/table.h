// What the bindings of table share: its arguments and their checks.
#pragma once
#include "common/call.h"
#include "common/quantized_checks.h"
#include "common/tensor.h"

namespace fxquant {

struct TableCall {
  Tensor x;
  Tensor table;
};

// The tensors of a call, dense; y lies as x does.
struct Table {
  Tensor x;
  Tensor entries;
  Tensor y;

  const uint8_t* x_bytes() const { return static_cast<const uint8_t*>(x.const_data_ptr()); }
  const uint8_t* entry_bytes() const { return static_cast<const uint8_t*>(entries.const_data_ptr()); }
  uint8_t* y_bytes() const { return static_cast<uint8_t*>(y.mutable_data_ptr()); }
};

inline Table prepare_table(const TableCall& call) {
  constexpr const char* op = "fxquant::table";
  check_quantized(op, "x", call.x);
  check_quantized(op, "table", call.table);
  check_count(op, "table", call.table, 256);
  const Tensor x = dense(call.x);
  return {x, dense(call.table), empty_like_dense(x, call.table.scalar_type())};
}

}  // namespace fxquant
