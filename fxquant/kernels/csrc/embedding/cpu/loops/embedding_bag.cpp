// Reduces rows of a table to one for each bag. The rows lie one after the other. A task is a stretch of bags:
//
//   for bag:                           # parallel
//       for block of columns:          # its sums or maxima stay in the cache
//           for index of the bag, in order: dequantize the block of its row; add it, or take the larger values
#include "embedding/cpu/loops/embedding_bag.h"

#include "embedding/cpu/loops/lookup.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

void add(const float* FXQ_RESTRICT row, float* FXQ_RESTRICT y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = y[i] + row[i];
}

void add_weighted(const float* FXQ_RESTRICT row, float weight, float* FXQ_RESTRICT y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = y[i] + row[i] * weight;
}

void keep_larger(const float* FXQ_RESTRICT row, float* FXQ_RESTRICT y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = row[i] > y[i] ? row[i] : y[i];
}

void divide(float* y, float divisor, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = y[i] / divisor;
}

// The columns first <= c < first + count of one bag: in the order of its indices, so that sums round everywhere alike.
void reduce(const EmbeddingBagArgs& args, int64_t bag, int64_t first, int64_t count, float* y) {
  const Bags& bags = args.bags;
  float row[kBlock];
  int64_t used = 0;
  for (int64_t i = 0; i < count; ++i) y[i] = 0;
  for (int64_t k = bags.offsets[bag]; k < bags.offsets[bag + 1]; ++k) {
    if (bags.indices[k] == bags.padding_idx) continue;
    if (bags.mode == BagMode::kMax && used == 0) {
      dequantize_row(args.table, bags.indices[k], first, count, y);
    } else {
      dequantize_row(args.table, bags.indices[k], first, count, row);
      if (bags.mode == BagMode::kMax) {
        keep_larger(row, y, count);
      } else if (bags.weights) {
        add_weighted(row, bags.weights[k], y, count);
      } else {
        add(row, y, count);
      }
    }
    ++used;
  }
  if (bags.mode == BagMode::kMean && used > 0) divide(y, static_cast<float>(used), count);
}

}  // namespace

void embedding_bag_loop(const EmbeddingBagArgs& args, int64_t begin, int64_t end) {
  const int64_t columns = args.table.columns;
  for (int64_t bag = begin; bag < end; ++bag) {
    for_each_block(columns, [&](int64_t first, int64_t count) {
      reduce(args, bag, first, count, args.y + bag * columns + first);
    });
  }
}

}  // namespace FXQ_ISA
}  // namespace fxquant
