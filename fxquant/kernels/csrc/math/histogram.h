// Bins of a histogram, written once for the CPU and for CUDA. A bin is a power of two wide, so that doubling its width
// merges pairs of bins and moves no value to a wrong one. Bins mirror each other at 0: index j >= 0 holds the x >= 0 with
// j * width <= x < (j + 1) * width, and index -1 - j the same magnitudes below 0.
#pragma once
#include <cstdint>
#include <cstring>

#include "math/half.h"

namespace fxquant {

// Which bins are counted: those of index first <= j < first + bins, each 2^exponent wide.
struct BinWindow {
  int32_t exponent;
  int32_t first;
};

constexpr int32_t kSmallestExponent = -126;  // 2^126, by which values are then multiplied, is still finite
constexpr int64_t kFewestBins = 16;  // with fewer, no exponent of a float is large enough
constexpr int64_t kMostBins = 65536;
constexpr uint32_t kInfinity = 0x7f800000u;

// 2^-exponent
FXQ_HOST_DEVICE float inverse_width(int32_t exponent) {
  return float_of_bits(static_cast<uint32_t>(127 - exponent) << 23);
}

// Exact: a product with a power of two is rounded only where it underflows, and then its whole part is 0 all the same.
FXQ_HOST_DEVICE int32_t bin_of(float x, float inverse) {
  const float magnitude = float_of_bits(bits_of_float(x) & 0x7fffffffu);
  const int32_t whole = static_cast<int32_t>(magnitude * inverse);
  return x < 0 ? ~whole : whole;
}

// Integers in the order of the floats; those of NaN lie beyond the infinities.
FXQ_HOST_DEVICE int32_t key_of(float x) {
  const int32_t bits = static_cast<int32_t>(bits_of_float(x));
  return bits ^ ((bits >> 31) & 0x7fffffff);
}

FXQ_HOST_DEVICE float of_key(int32_t key) {
  return float_of_bits(static_cast<uint32_t>(key ^ ((key >> 31) & 0x7fffffff)));
}

// The same for the bits of a 16-bit float.
FXQ_HOST_DEVICE int16_t short_key_of(uint16_t bits) {
  const int16_t signed_bits = static_cast<int16_t>(bits);
  return static_cast<int16_t>(signed_bits ^ ((signed_bits >> 15) & 0x7fff));
}

FXQ_HOST_DEVICE uint16_t of_short_key(int16_t key) {
  return static_cast<uint16_t>(key ^ ((key >> 15) & 0x7fff));
}

FXQ_HOST_DEVICE bool is_finite(float x) { return (bits_of_float(x) & kInfinity) != kInfinity; }

FXQ_HOST_DEVICE int64_t whole_widths(double x, int32_t exponent) {
  const uint64_t bits = static_cast<uint64_t>(1023 - exponent) << 52;
  double inverse;
  memcpy(&inverse, &bits, sizeof inverse);
  return static_cast<int64_t>(x * inverse);
}

// At most the largest float; 0 for NaN and for what is negative.
FXQ_HOST_DEVICE double reach(float x) {
  const float largest = float_of_bits(kInfinity - 1);
  const float at_least_0 = x > 0 ? x : 0.0f;
  return at_least_0 < largest ? at_least_0 : largest;
}

// The narrowest bins of which `bins`, at least 16, reach from low to high, and to 0, which every quantization range holds. If nothing
// was seen, so that low > high, the narrowest of all.
FXQ_HOST_DEVICE BinWindow window_of(float low, float high, int64_t bins) {
  const double above = low <= high ? reach(high) : 0;
  const double below = low <= high ? reach(-low) : 0;
  const double density = (above + below) / static_cast<double>(bins);
  uint64_t bits;
  memcpy(&bits, &density, sizeof bits);
  // 2^exponent > density >= 2^(exponent - 1): narrower bins never reach that far, twice as wide ones always do.
  int32_t exponent = static_cast<int32_t>(bits >> 52) - 1022;
  exponent = exponent > kSmallestExponent ? exponent : kSmallestExponent;
  const int64_t needed = whole_widths(above, exponent) + whole_widths(below, exponent) + (below > 0 ? 2 : 1);
  exponent += needed > bins;
  return {exponent, below > 0 ? static_cast<int32_t>(-1 - whole_widths(below, exponent)) : 0};
}

// Where the bin at a position of one window lies in another one, which reaches as far and has no narrower bins. The
// shift of a negative index rounds down, which is how mirrored bins pair up. A state that contradicts itself may have
// narrower bins all the same, and then the result says nothing.
FXQ_HOST_DEVICE int64_t rebinned_index(int64_t position, const BinWindow& from, const BinWindow& to) {
  const int32_t difference = to.exponent - from.exponent;
  const int32_t at_least_0 = difference > 0 ? difference : 0;
  return ((from.first + position) >> (at_least_0 < 40 ? at_least_0 : 40)) - to.first;
}

}  // namespace fxquant
