#pragma once
#include "cpu/isa.h"

namespace fxquant {

struct TableArgs {
  const uint8_t* x;
  const uint8_t* table;  // [256]
  uint8_t* y;

  template <typename Visitor>
  void pointers(Visitor& visit) const {
    visit.tensor(x);
    visit.tensor(table);
    visit.tensor(y);
  }
  template <typename Visitor>
  void lookup_step(Visitor visit) const {
    visit(x, table, y);
  }
};

}  // namespace fxquant

FXQ_DECLARE_LOOP(table_loop, (const TableArgs& args, int64_t begin, int64_t end))
