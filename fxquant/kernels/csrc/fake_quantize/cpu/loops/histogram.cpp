// Histogram of the values of one row, with bins whose width is a power of two (math/histogram.h).
//
//   for part of kPart elements:      # stays in the L1 cache
//       find the extremes; leave out what is not finite
//       if the bins do not reach the extremes: widen the bins, which merges counts
//       for element: compute the index of its bin
//       for element: count it, in one of kReplicas counters of the bin
#include "fake_quantize/cpu/loops/histogram.h"

#include <cstring>

#include "cpu/loops/blocks.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

constexpr int64_t kPart = 2048;  // elements that are measured, then counted, while they are in the L1 cache
// Elements in the replicas, so that none overflows whatever comes: a part adds at most count / kReplicas + kReplicas to
// one.
constexpr int64_t kMostPending = 65535 * kReplicas;

struct Extremes {
  int32_t low;
  int32_t high;
};

Extremes extremes(const float* FXQ_RESTRICT x, int64_t count) {
  int32_t low = INT32_MAX;
  int32_t high = INT32_MIN;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t key = key_of(x[i]);
    low = key < low ? key : low;
    high = key > high ? key : high;
  }
  return {low, high};
}

// Computes the index of the first counter of each element's bin.
void places(const float* FXQ_RESTRICT x, int32_t* FXQ_RESTRICT place, int64_t count, float inverse, int32_t first) {
  for (int64_t i = 0; i < count; ++i) place[i] = (bin_of(x[i], inverse) - first) * static_cast<int32_t>(kReplicas);
}

// Counts. The memory bus is idle meanwhile, so it prefetches the next part.
void count_up(const int32_t* FXQ_RESTRICT place, uint16_t* FXQ_RESTRICT replicas, int64_t count, const char* next,
              int64_t bytes) {
  int64_t i = 0;
  for (; i + kReplicas <= count; i += kReplicas) {
    __builtin_prefetch(next + i * bytes);
    for (int64_t replica = 0; replica < kReplicas; ++replica) ++replicas[place[i + replica] + replica];
  }
  for (; i < count; ++i) ++replicas[place[i]];
}

// Copies what is finite to the front; returns how much that is.
int64_t copy_finite(const float* x, float* finite_values, int64_t count) {
  int64_t n = 0;
  for (int64_t i = 0; i < count; ++i) {
    finite_values[n] = x[i];
    n += is_finite(x[i]);
  }
  return n;
}

// Adds the replicas to the counts and empties them.
void flush_replicas(BinCounts& c) {
  for (int64_t b = 0; b < c.bins; ++b) {
    uint32_t sum = 0;
    for (int64_t replica = 0; replica < kReplicas; ++replica) sum += c.replicas[b * kReplicas + replica];
    c.counts[b] += sum;
  }
  std::memset(c.replicas, 0, c.bins * kReplicas * sizeof *c.replicas);
  c.pending = 0;
}

void rebin(BinCounts& c, const BinWindow& to) {
  flush_replicas(c);
  std::memset(c.scratch, 0, c.bins * sizeof *c.scratch);
  for (int64_t b = 0; b < c.bins; ++b) {
    if (c.counts[b] != 0) c.scratch[rebinned_index(b, c.window, to)] += c.counts[b];
  }
  std::memcpy(c.counts, c.scratch, c.bins * sizeof *c.counts);
  c.window = to;
}

bool window_holds(const BinCounts& c, float low, float high) {
  const float inverse = inverse_width(c.window.exponent);
  // Compared as floats, which are exact here as long as they are small, and never overflow an integer.
  const float limit = static_cast<float>(1 << 30);
  if (!(high * inverse < limit && -low * inverse < limit)) return false;
  return bin_of(low, inverse) >= c.window.first && bin_of(high, inverse) < c.window.first + c.bins;
}

// Chooses bins that reach all values so far. Spare bins lie at both ends, so that the bins seldom change again.
void widen(BinCounts& c) {
  BinWindow window = window_of(c.low, c.high, c.bins);
  if (c.low < 0) {
    const float inverse = inverse_width(window.exponent);
    const int32_t last = c.high > 0 ? bin_of(c.high, inverse) : 0;
    window.first -= static_cast<int32_t>((c.bins - (last - window.first + 1)) / 2);
  }
  rebin(c, window);
}

void count_part(BinCounts& c, const float* x, int64_t count, const void* next, int64_t bytes) {
  float finite_values[kPart];
  int32_t place[kPart];
  Extremes found = extremes(x, count);
  if (!is_finite(of_key(found.low)) || !is_finite(of_key(found.high))) {
    const int64_t finite = copy_finite(x, finite_values, count);
    c.nonfinite += count - finite;
    if (finite == 0) return;
    x = finite_values;
    count = finite;
    found = extremes(x, count);
  }
  const float low = of_key(found.low) + 0.0f;  // -0.0 becomes 0.0
  const float high = of_key(found.high) + 0.0f;
  if (low < c.low) c.low = low;
  if (high > c.high) c.high = high;
  if (!window_holds(c, low, high)) widen(c);
  const int64_t load = count + kReplicas * kReplicas;
  if (c.pending + load > kMostPending) flush_replicas(c);
  c.pending += load;
  places(x, place, count, inverse_width(c.window.exponent), c.window.first);
  count_up(place, c.replicas, count, static_cast<const char*>(next), bytes);
}

const float* as_floats(const float* x, float*, int64_t) { return x; }

const float* as_floats(const double* FXQ_RESTRICT x, float* FXQ_RESTRICT y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = static_cast<float>(x[i]);
  return y;
}

template <Float type>
const float* as_floats(const Short<type>* x, float* y, int64_t count) {
  widen(x, y, count);
  return y;
}

template <typename T>
void count_range(BinCounts& c, int64_t begin, int64_t end) {
  float real[kPart];
  const T* x = static_cast<const T*>(c.x);
  for (int64_t i = begin; i < end; i += kPart) {
    const int64_t count = end - i < kPart ? end - i : kPart;
    count_part(c, as_floats(x + i, real, count), count, x + i + kPart, sizeof(T));
  }
}

}  // namespace

void histogram_loop(BinCounts& counts, int64_t begin, int64_t end) {
  switch (counts.type) {
    case Float::kFloat: count_range<float>(counts, begin, end); break;
    case Float::kDouble: count_range<double>(counts, begin, end); break;
    case Float::kHalf: count_range<Half>(counts, begin, end); break;
    case Float::kBFloat16: count_range<BFloat16>(counts, begin, end); break;
  }
  rebin(counts, window_of(counts.low, counts.high, counts.bins));
}

}  // namespace FXQ_ISA
}  // namespace fxquant
