// Averages windows of images that lie as [planes][rows][columns][channels]: channels_last, or one channel a plane. A task
// is one pixel of the result and a block of its channels:
//
//   for plane, row, column, block of channels:   # parallel
//       for row of the window:
//           for four elements of it: add the block's channels to their sums, which stay in registers
//       take the zero points off, multiply by x_scale / divisor, round, clamp, store
#include "pool/cpu/loops/average.h"

#include "cpu/loops/rows.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

// What a sum becomes once zero points are taken off.
template <typename Sum>
struct Widened {
  using Type = int32_t;
};
template <>
struct Widened<int64_t> {
  using Type = int64_t;
};

// sums[i] += tap[i] + tap[step + i] + ... for N elements of a window that are step apart.
template <typename Q, typename Sum, int kLength, int N>
void add_taps(const Q* tap, int64_t step, Sum* sums) {
  FXQ_INDEPENDENT
  for (int i = 0; i < kLength; ++i) {
    Sum sum = sums[i];
    for (int k = 0; k < N; ++k) sum = static_cast<Sum>(sum + tap[k * step + i]);
    sums[i] = sum;
  }
}

// A window, block by block of its channels. Sum holds sums of quantized values; zero points are taken off at the end.
template <typename Q, typename Sum>
struct ChannelBlocks {
  const Q* corner;  // the window's first element, and its first channel
  int64_t row;      // distances of the window's rows and elements
  int64_t step;
  int64_t rows;
  int64_t columns;
  int32_t zero_point;
  float factor;
  OutputQParams y_qparams;
  uint8_t* y;

  template <int kLength>
  void run(int64_t first) const {
    Sum sums[kLength];
    for (int i = 0; i < kLength; ++i) sums[i] = 0;
    for (int64_t r = 0; r < rows; ++r) {
      const Q* tap = corner + first + r * row;
      int64_t left = columns;
      for (; left >= 4; left -= 4, tap += 4 * step) add_taps<Q, Sum, kLength, 4>(tap, step, sums);
      if (left == 3) add_taps<Q, Sum, kLength, 3>(tap, step, sums);
      if (left == 2) add_taps<Q, Sum, kLength, 2>(tap, step, sums);
      if (left == 1) add_taps<Q, Sum, kLength, 1>(tap, step, sums);
    }
    using Difference = typename Widened<Sum>::Type;
    const Difference zero = static_cast<Difference>(rows * columns) * zero_point;
    uint8_t* out = y + first;
    FXQ_INDEPENDENT
    for (int i = 0; i < kLength; ++i) out[i] = requantize(static_cast<float>(sums[i] - zero) * factor, y_qparams);
  }
};

// One channel: rows of the window are runs in memory.
template <typename Q, typename Sum>
uint8_t average_runs(const AverageArgs& a, const Q* corner, const Window& rows, const Window& columns, float factor) {
  using Wide = typename Widened<Sum>::Type;
  Wide sum = -static_cast<Wide>(rows.count * columns.count) * a.x_zero_point;
  for (int64_t r = 0; r < rows.count; ++r) {
    const Q* run = corner + r * a.columns.size;
    for (int64_t i = 0; i < columns.count; ++i) sum += run[i];
  }
  return requantize(static_cast<float>(sum) * factor, a.y_qparams);
}

float factor_of(const AverageArgs& a, const Window& rows, const Window& columns) {
  const int64_t elements = a.count_padding ? rows.extent * columns.extent : rows.count * columns.count;
  return a.x_scale / static_cast<float>(a.divisor != 0 ? a.divisor : elements);
}

template <typename Q, typename Sum>
void average_windows(const AverageArgs& a, int64_t begin, int64_t end) {
  const int64_t blocks = (a.channels + kChannelBlock - 1) / kChannelBlock;
  int64_t block = begin % blocks;
  int64_t pixel = begin / blocks;
  int64_t ow = pixel % a.columns.outputs;
  int64_t oh = pixel / a.columns.outputs % a.rows.outputs;
  int64_t plane = pixel / a.columns.outputs / a.rows.outputs;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t channel = block * kChannelBlock;
    const int64_t count = a.channels - channel < kChannelBlock ? a.channels - channel : kChannelBlock;
    const Window& rows = a.row_windows[oh];
    const Window& columns = a.column_windows[ow];
    const int64_t first = (plane * a.rows.size + rows.start) * a.columns.size + columns.start;
    const Q* corner = static_cast<const Q*>(a.x) + first * a.channels + channel;
    uint8_t* y = static_cast<uint8_t*>(a.y) + pixel * a.channels + channel;
    const float factor = factor_of(a, rows, columns);
    if (a.channels == 1) {
      *y = average_runs<Q, Sum>(a, corner, rows, columns, factor);
    } else {
      cover_row(count, ChannelBlocks<Q, Sum>{corner, a.columns.size * a.channels, a.channels, rows.count, columns.count,
                                             a.x_zero_point, factor, a.y_qparams, y});
    }
    // counting on is much cheaper than dividing i again
    if (++block < blocks) continue;
    block = 0;
    ++pixel;
    if (++ow < a.columns.outputs) continue;
    ow = 0;
    if (++oh < a.rows.outputs) continue;
    oh = 0;
    ++plane;
  }
}

// The narrowest sums that hold a whole window: more of them fit a register.
template <typename Q>
void average_with_narrow_sums(const AverageArgs& a, int64_t begin, int64_t end) {
  if (a.elements <= INT16_MAX / 255) return average_windows<Q, int16_t>(a, begin, end);
  if (a.elements <= INT32_MAX / 256) return average_windows<Q, int32_t>(a, begin, end);
  return average_windows<Q, int64_t>(a, begin, end);
}

}  // namespace

void average_loop(const AverageArgs& args, int64_t begin, int64_t end) {
  args.is_signed ? average_with_narrow_sums<int8_t>(args, begin, end)
                 : average_with_narrow_sums<uint8_t>(args, begin, end);
}

}  // namespace FXQ_ISA
}  // namespace fxquant
