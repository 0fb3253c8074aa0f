#include "average.h"

#include "channels.h"
#include "vector.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

template <typename Q, typename Sum>
void add_four(const Q* const* taps, Sum* FXQ_RESTRICT sums, int64_t count) {
  const Q* FXQ_RESTRICT t0 = taps[0];
  const Q* FXQ_RESTRICT t1 = taps[1];
  const Q* FXQ_RESTRICT t2 = taps[2];
  const Q* FXQ_RESTRICT t3 = taps[3];
  for (int64_t i = 0; i < count; ++i) sums[i] += t0[i] + t1[i] + t2[i] + t3[i];
}

template <typename Q, typename Sum>
void add_one(const Q* FXQ_RESTRICT tap, Sum* FXQ_RESTRICT sums, int64_t count) {
  for (int64_t i = 0; i < count; ++i) sums[i] += tap[i];
}

template <typename Sum>
void store(const Sum* FXQ_RESTRICT sums, uint8_t* FXQ_RESTRICT y, int64_t count, float factor, OutputGrid grid) {
  for (int64_t i = 0; i < count; ++i) y[i] = requantize(static_cast<float>(sums[i]) * factor, grid);
}

// channels_last: sums of a block of channels, four elements of the window at a time.
template <typename Q, typename Sum>
void average_block(const AverageArgs& a, const Q* plane, const Window& rows, const Window& columns, int64_t channel,
                   int64_t count, float factor, uint8_t* y) {
  Sum sums[kChannelBlock];
  const Sum start = -static_cast<Sum>(rows.count * columns.count) * a.x_zero_point;
  for (int64_t i = 0; i < count; ++i) sums[i] = start;
  const Q* taps[4];
  int n = 0;
  for (int64_t r = 0; r < rows.count; ++r) {
    const Q* tap = plane + ((rows.start + r) * a.columns.size + columns.start) * a.channels + channel;
    for (int64_t c = 0; c < columns.count; ++c, tap += a.channels) {
      taps[n++] = tap;
      if (n == 4) {
        add_four(taps, sums, count);
        n = 0;
      }
    }
  }
  for (int k = 0; k < n; ++k) add_one(taps[k], sums, count);
  store(sums, y, count, factor, a.grid);
}

template <typename Q, typename Sum>
Sum sum_of_run(const Q* x, int64_t count) {
  Sum sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += x[i];
  return sum;
}

// One channel: rows of the window are runs in memory.
template <typename Q, typename Sum>
uint8_t average_single(const AverageArgs& a, const Q* plane, const Window& rows, const Window& columns, float factor) {
  Sum sum = -static_cast<Sum>(rows.count * columns.count) * a.x_zero_point;
  for (int64_t r = 0; r < rows.count; ++r) {
    sum += sum_of_run<Q, Sum>(plane + (rows.start + r) * a.columns.size + columns.start, columns.count);
  }
  return requantize(static_cast<float>(sum) * factor, a.grid);
}

float factor_of(const AverageArgs& a, const Window& rows, const Window& columns) {
  const int64_t elements = a.count_padding ? rows.extent * columns.extent : rows.count * columns.count;
  return a.x_scale / static_cast<float>(a.divisor != 0 ? a.divisor : elements);
}

template <typename Q, typename Sum>
void walk(const AverageArgs& a, int64_t begin, int64_t end) {
  const int64_t blocks = (a.channels + kChannelBlock - 1) / kChannelBlock;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t pixel = i / blocks;
    const int64_t channel = i % blocks * kChannelBlock;
    const int64_t row = pixel / a.columns.outputs;
    const Window& columns = a.column_windows[pixel % a.columns.outputs];
    const Window& rows = a.row_windows[row % a.rows.outputs];
    const Q* plane = static_cast<const Q*>(a.x) + row / a.rows.outputs * a.rows.size * a.columns.size * a.channels;
    uint8_t* y = static_cast<uint8_t*>(a.y) + pixel * a.channels + channel;
    const float factor = factor_of(a, rows, columns);
    if (a.channels == 1) {
      *y = average_single<Q, Sum>(a, plane, rows, columns, factor);
    } else {
      const int64_t left = a.channels - channel;
      average_block<Q, Sum>(a, plane, rows, columns, channel, left < kChannelBlock ? left : kChannelBlock, factor, y);
    }
  }
}

template <typename Q>
void walk_sums(const AverageArgs& args, int64_t begin, int64_t end) {
  args.is_wide ? walk<Q, int64_t>(args, begin, end) : walk<Q, int32_t>(args, begin, end);
}

}  // namespace

void average_loop(const AverageArgs& args, int64_t begin, int64_t end) {
  args.is_signed ? walk_sums<int8_t>(args, begin, end) : walk_sums<uint8_t>(args, begin, end);
}

}  // namespace FXQ_ISA
}  // namespace fxquant
