// From the sums of a tile to the result of a convolution.
#pragma once
#include "conv/cpu/loops/conv_epilogue.h"
#include "cpu/loops/tile.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

template <int R, int V, int r = 0>
FXQ_INLINE void store_rows(const Epilogue& epilogue, const Accumulators (*acc)[V], int64_t row, int64_t channel,
                           int64_t left) {
  epilogue.store<V>(acc[r], row + r, channel, left);
  if constexpr (r + 1 < R) store_rows<R, V, r + 1>(epilogue, acc, row, channel, left);
}

}  // namespace
}  // namespace FXQ_ISA
}  // namespace fxquant
