#pragma once
#include "cpu/isa.h"
#include "embedding/lookup.h"

namespace fxquant {

struct EmbeddingArgs {
  LookupTable table;
  const int64_t* indices;
  float* y;  // [indices, columns]
};

}  // namespace fxquant

// The indices begin <= i < end.
FXQ_DECLARE_LOOP(embedding_loop, (const EmbeddingArgs& args, int64_t begin, int64_t end))
