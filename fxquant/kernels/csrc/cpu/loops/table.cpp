#include "table.h"

#include "blocks.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

void look_up(const uint8_t* FXQ_RESTRICT x, const uint8_t* FXQ_RESTRICT table, uint8_t* FXQ_RESTRICT y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = table[x[i]];
}

}  // namespace

void table_loop(const TableArgs& args, int64_t begin, int64_t end) {
  look_up(args.x + begin, args.table, args.y + begin, end - begin);
}

}  // namespace FXQ_ISA
}  // namespace fxquant
