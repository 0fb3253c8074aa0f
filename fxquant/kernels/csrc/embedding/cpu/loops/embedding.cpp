// Dequantizes rows of a table, which lie one after the other: for index (parallel), for column.
#include "embedding/cpu/loops/embedding.h"

#include "embedding/cpu/loops/lookup.h"

namespace fxquant {
namespace FXQ_ISA {

void embedding_loop(const EmbeddingArgs& args, int64_t begin, int64_t end) {
  const int64_t columns = args.table.columns;
  for (int64_t i = begin; i < end; ++i) dequantize_row(args.table, args.indices[i], 0, columns, args.y + i * columns);
}

}  // namespace FXQ_ISA
}  // namespace fxquant
