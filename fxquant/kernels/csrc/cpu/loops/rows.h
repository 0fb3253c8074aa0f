// Loops over rows that are often short: the channels of one pixel. No torch.
//
// A plain loop leaves a remainder that runs element by element, and costs more than all the rest where a row is a few
// dozen channels. Here a row is covered by blocks of fixed length, and the last one may overlap the one before: some
// elements are written twice, with the same value, so a row must not be written onto what it is read from.
#pragma once
#include <cstdint>

#include "cpu/loops/loop_pragmas.h"

namespace fxquant {

// Calls blocks.run<length>(first) until 0 <= i < count is covered. A block costs about the same whatever its length
// (of AVX-512 registers, a block of 16 bytes fills a quarter of each), so as few as possible are used.
template <typename Blocks>
static inline void cover_row(int64_t count, const Blocks& blocks) {
  int64_t done = 0;
  for (; done + 64 <= count; done += 64) blocks.template run<64>(done);
  if (count - done > 32 && count >= 64) return blocks.template run<64>(count - 64);
  if (count - done >= 32) {
    blocks.template run<32>(done);
    done += 32;
  }
  if (count - done > 16 && count >= 32) return blocks.template run<32>(count - 32);
  if (count - done >= 16) {
    blocks.template run<16>(done);
    done += 16;
  }
  if (count > done && count >= 16) return blocks.template run<16>(count - 16);
  for (; done < count; ++done) blocks.template run<1>(done);
}

template <typename Body>
struct ElementBlocks {
  Body body;

  template <int kLength>
  void run(int64_t first) const {
    FXQ_INDEPENDENT
    for (int k = 0; k < kLength; ++k) body(first + k);
  }
};

// Calls body(i) for 0 <= i < count, for some of them twice. Body is a struct with its operator(), not a lambda.
template <typename Body>
static inline void for_each_in_row(int64_t count, const Body& body) {
  cover_row(count, ElementBlocks<Body>{body});
}

}  // namespace fxquant
