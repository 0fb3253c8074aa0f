// Allocations that can be made to fail, for tests: what a program does where there is no memory is seen in no other way.
#pragma once
#include <atomic>
#include <cstdint>
#include <new>

namespace fxquant {

// How many allocations of this library succeed before one fails, and after it so many again; negative: none fails.
inline std::atomic<int64_t> allocations_until_failure{-1};
inline std::atomic<int64_t> allocations_between_failures{-1};

// Fails if a test asked for it. Whoever allocates calls this first.
inline void maybe_fail_allocation() {
  if (allocations_until_failure.load(std::memory_order_relaxed) < 0) return;
  if (allocations_until_failure.fetch_sub(1) == 0) {
    allocations_until_failure = allocations_between_failures.load();
    throw std::bad_alloc();
  }
}

}  // namespace fxquant
