// bfloat16 two at a time, as halves of a 32-bit word: loops that mix lanes of 16 and of 32 bits spend as much on going
// from one to the other as on their work. No torch.
#pragma once
#include "cpu/loops/blocks.h"

namespace fxquant {

struct Pair {
  float first;
  float second;
};

// Of both halves of a word; the first element is the lower one. memcpy, since elements need not lie at whole words.
static inline uint32_t word_at(const BFloat16* x) {
  uint32_t word;
  memcpy(&word, x, sizeof word);
  return word;
}

static inline Pair pair_of(uint32_t word) { return {float_of_bits(word << 16), float_of_bits(word & 0xffff0000u)}; }

static inline void store_word(uint32_t word, BFloat16* y) { memcpy(y, &word, sizeof word); }

// As rounded_to_bfloat16, in half as many instructions: of a number, an infinity, or the NaN of no other bits.
static inline uint32_t rounded_number(float x) {
  const uint32_t bits = bits_of_float(x);
  return bits + ((bits & 0x10000u) != 0 ? 0x8000u : 0x7fffu);
}

static inline void store_pair(Pair pair, BFloat16* y) {
  store_word((rounded_number(pair.first) >> 16) | (rounded_number(pair.second) & 0xffff0000u), y);
}

}  // namespace fxquant
