#pragma once
#include "brgemm_sizes.h"
#include "conv2d.h"

namespace fxquant {

constexpr int64_t kGatheredRows = 2 * kProductRows;  // pixels of the result that a task has at most

// How a convolution is divided if the framework's kernels multiply: strips of pixels, for each of which all that a bundle
// reads is brought together once; of each, blocks of channels.
struct BrgemmTasks {
  int64_t strips, bundles, blocks;
  int64_t depth;  // products of a sum
  int64_t count, grain;

  FXQ_INLINE explicit BrgemmTasks(const ConvShape& shape)
      : strips((shape.rows() + kGatheredRows - 1) / kGatheredRows),
        bundles(shape.bundles()),
        blocks(shape.blocks()),
        depth(shape.pieces() * shape.quads() * kQuad),
        count(strips * bundles * blocks) {
    constexpr int64_t kWork = 1 << 19;  // as conv2d.h; tiles multiply a few times as fast
    constexpr int64_t kEpilogue = 48;
    const int64_t work = shape.rows() * bundles * shape.panels() * kPanel * (depth / 4 + kEpilogue) / count;
    grain = work < kWork ? kWork / (work + 1) : 1;
  }

  FXQ_INLINE int64_t scratch() const { return gathered_bytes(kGatheredRows, depth); }
};

}  // namespace fxquant

// The tasks begin <= i < end of BrgemmTasks. No convolution is depthwise.
FXQ_DECLARE_VNNI_LOOP(conv_brgemm_loop, (const ConvArgs& args, int64_t begin, int64_t end, uint8_t* scratch))
