// How many rows of a norm are under way at once: while one waits for its sum, the others are worked on. No torch.
#pragma once
#include <cstdint>

namespace fxquant {

constexpr int64_t kRowsTogether = 4;

// Their values, and int32 scratch of the same size, fit the L1 cache.
static inline int64_t rows_together(int64_t columns) { return columns <= 1024 ? kRowsTogether : 1; }

}  // namespace fxquant
