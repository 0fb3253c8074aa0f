#pragma once
#include "cpu/isa.h"
#include "embedding/lookup.h"

namespace fxquant {

struct EmbeddingBagArgs {
  LookupTable table;
  Bags bags;
  float* y;  // [bags, columns]
};

}  // namespace fxquant

// The bags begin <= i < end.
FXQ_DECLARE_LOOP(embedding_bag_loop, (const EmbeddingBagArgs& args, int64_t begin, int64_t end))
