// Replaces each byte by its entry of the table, in the order of memory.
#include "table/cpu/loops/table.h"

#include "table/cpu/loops/look_up.h"

namespace fxquant {
namespace FXQ_ISA {

void table_loop(const TableArgs& args, int64_t begin, int64_t end) {
  look_up(args.x + begin, args.table, args.y + begin, {1, 0, end - begin});
}

}  // namespace FXQ_ISA
}  // namespace fxquant
