// Chains: steps of a program that run together, strip by strip of rows, so that what lies between them stays in the L2 cache.
//
//   for image, strip of rows of the last result in tasks:   # in parallel
//       from the last link to the first: which rows of its result are needed and were not computed for the strip before?
//       from the first link to the last: compute these rows  # into scratch memory; the last link into its own result
//
// A result between two links is no tensor of the arena: a thread holds a few of its rows. Rows that two strips need stay there.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>
#include <vector>

#include "common/layout.h"
#include "cpu/recorder.h"

namespace fxquant {

// Bytes of a result from which on it leaves the L2 cache before it is read. Tests lower it.
inline std::atomic<int64_t> chains_from{1 << 20};

struct Chain {
  static constexpr int64_t kMostLinks = 8;

  struct Link {
    Step step;
    int64_t rows;    // of its result that are held at a time
    int64_t buffer;  // where they lie in the scratch memory; of the last link: nowhere
  };
  std::vector<Link> links;
  int64_t strip_rows = 0;  // of the last result
  int64_t strips = 0;      // of an image

  // Runs the tasks begin <= i < end.
  void run(const uint8_t* arguments, int64_t begin, int64_t end, uint8_t* scratch) const {
    struct Held {
      int64_t image = -1;
      RowRange rows = {0, 0};
    };
    Held held[kMostLinks];
    const int64_t count = static_cast<int64_t>(links.size());
    for (int64_t task = begin; task < end; ++task) {
      const int64_t image = task / strips, strip = task % strips;
      RowPart parts[kMostLinks];
      // Find the rows that each link has to compute, from the last link to the first.
      RowRange wanted{strip * strip_rows, std::min((strip + 1) * strip_rows, links.back().step.rows.out_rows)};
      int64_t first_link = count;  // of those with rows to compute
      for (int64_t i = count - 1; i >= 0 && wanted.first < wanted.end; --i) {
        const Link& link = links[i];
        parts[i] = {image, wanted, nullptr, 0, nullptr};
        if (i + 1 < count) {
          uint8_t* const buffer = scratch + link.buffer;
          const int64_t row = link.step.rows.out_row_bytes;
          Held& has = held[i];
          const bool goes_on = has.image == image && has.rows.first <= wanted.first && wanted.first < has.rows.end;
          const int64_t reused = goes_on ? std::min(has.rows.end, wanted.end) - wanted.first : 0;
          if (reused > 0) std::memmove(buffer, buffer + (wanted.first - has.rows.first) * row, reused * row);
          has = {image, wanted};
          parts[i + 1].x = buffer;
          parts[i + 1].x_first = wanted.first;
          parts[i].rows.first += reused;
          parts[i].y = buffer + reused * row;
        }
        if (parts[i].rows.first == parts[i].rows.end) break;
        first_link = i;
        wanted = rows_read(link.step.rows, parts[i].rows);
      }
      for (int64_t i = first_link; i < count; ++i) {
        const Step& step = links[i].step;
        step.call_rows(step.loop, arguments + step.args, parts[i], scratch);
      }
    }
  }
};

namespace chains {

constexpr int64_t kNear = 256 << 10;     // bytes of all rows that a thread holds
constexpr int64_t kWeights = 96 << 10;   // bytes of a weight: each strip reads all weights
constexpr int64_t kProducts = 192;       // for a byte of the result: with more, memory is not what a link waits for
constexpr int64_t kStrips = 16;          // enough for some threads
constexpr int64_t kLeastRows = 4;        // of a strip that is shortened for the sake of threads

// Tells whether the second step reads nothing but what the first one wrote, and nobody else reads that.
inline bool follows(const Step& a, const Step& b, const std::vector<ArgumentPointer>& pointers) {
  const auto pointer_at = [&](int64_t at) {
    return std::find_if(pointers.begin(), pointers.end(), [at](const ArgumentPointer& pointer) { return pointer.at == at; });
  };
  if (a.rows_y < 0 || b.rows_y < 0) return false;
  const auto written = pointer_at(a.rows_y), read = pointer_at(b.rows_x);
  const auto touches = [&](const ArgumentPointer& pointer) { return pointer.region == written->region; };
  return written != pointers.end() && read != pointers.end() && written->region == read->region &&
         written->region->role == Role::kTemporary && written->offset == 0 && read->offset == 0 &&
         std::count_if(pointers.begin(), pointers.end(), touches) == 2;
}

// Tells whether two steps gain if the result of the first one stays in the cache.
inline bool gains(const RowWindow& a, const RowWindow& b) {
  const bool fits = a.images == b.images && a.out_rows == b.in_rows && a.out_row_bytes == b.in_row_bytes &&
                    b.out_rows > 1;
  const bool all_windows_reach_x = b.top < b.extent() && (b.out_rows - 1) * b.stride - b.top < b.in_rows;
  return fits && all_windows_reach_x && a.result_bytes() >= chains_from && a.products <= kProducts && a.weight_bytes <= kWeights &&
         b.weight_bytes <= kWeights;
}

// Chooses how many rows a strip has, and where what lies between the links is held. Returns whether that fits the cache.
inline bool divide(Chain& chain) {
  const RowWindow& last = chain.links.back().step.rows;
  const auto held_bytes = [&](int64_t rows) {
    int64_t bytes = 0;
    for (int64_t i = static_cast<int64_t>(chain.links.size()) - 2; i >= 0; --i) {
      const RowWindow& reader = chain.links[i + 1].step.rows;
      rows = std::min((rows - 1) * reader.stride + reader.extent(), reader.in_rows);
      chain.links[i].rows = rows;
      bytes += rows * reader.in_row_bytes;
    }
    return bytes;
  };
  int64_t rows = last.out_rows;
  const auto strips = [&] { return (last.out_rows + rows - 1) / rows; };
  while (rows > 1 && held_bytes(rows) > kNear) rows = (rows + 1) / 2;
  while (rows > kLeastRows && last.images * strips() < kStrips) rows = (rows + 1) / 2;
  chain.strip_rows = rows;
  chain.strips = strips();
  if (held_bytes(rows) > kNear) return false;
  // Behind what the links need themselves.
  int64_t scratch = 0;
  for (const Chain::Link& link : chain.links) scratch = std::max(scratch, aligned(link.step.scratch));
  for (Chain::Link& link : chain.links) {
    link.buffer = scratch;
    if (&link != &chain.links.back()) scratch += aligned(link.rows * link.step.rows.out_row_bytes + kCacheLine);
  }
  chain.links.back().step.scratch = scratch;
  return true;
}

}  // namespace chains

// Makes chains of steps, and drops the pointers to what lies between their links. A chain stands in the place of its first step.
inline std::vector<Chain> make_chains(std::vector<Step>& steps, std::vector<ArgumentPointer>& pointers) {
  std::vector<Chain> result;
  std::vector<Step> left;
  const int64_t count = static_cast<int64_t>(steps.size());
  for (int64_t i = 0; i < count;) {
    Chain chain;
    chain.links.push_back({steps[i], 0, 0});
    int64_t next = i + 1;
    while (next < count && next - i < Chain::kMostLinks && chains::follows(steps[next - 1], steps[next], pointers) &&
           chains::gains(steps[next - 1].rows, steps[next].rows)) {
      chain.links.push_back({steps[next++], 0, 0});
    }
    left.push_back(steps[i]);
    if (next - i == 1 || !chains::divide(chain)) {
      ++i;
      continue;
    }
    Step& step = left.back();
    step.chain = static_cast<int64_t>(result.size());
    step.tasks = steps[i].rows.images * chain.strips;
    step.grain = 1;
    step.scratch = chain.links.back().step.scratch;
    const auto lies_between = [&](const ArgumentPointer& pointer) {
      for (int64_t k = i; k < next; ++k) {
        if ((k > i && pointer.at == steps[k].rows_x) || (k + 1 < next && pointer.at == steps[k].rows_y)) return true;
      }
      return false;
    };
    pointers.erase(std::remove_if(pointers.begin(), pointers.end(), lies_between), pointers.end());
    result.push_back(std::move(chain));
    i = next;
  }
  steps = std::move(left);
  return result;
}

}  // namespace fxquant
