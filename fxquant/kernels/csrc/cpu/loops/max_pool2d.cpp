#include "max_pool2d.h"

#include "channels.h"
#include "vector.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

template <typename Q>
Q larger(Q a, Q b) {
  return a > b ? a : b;
}

template <typename Q>
Q lowest() {
  return static_cast<Q>(static_cast<Q>(-1) < 0 ? -128 : 0);
}

// y[i] = the largest of tap[0][i] ... tap[N - 1][i]. One of the taps may be y.
template <typename Q, int N>
void largest_of(const Q* const* taps, Q* y, int64_t count) {
  const Q* tap[N];
  for (int k = 0; k < N; ++k) tap[k] = taps[k];
  FXQ_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) {
    Q largest = tap[0][i];
    for (int k = 1; k < N; ++k) largest = larger(largest, tap[k][i]);
    y[i] = largest;
  }
}

constexpr int kTaps = 9;  // at once: a window of 3 x 3 is read in one go

template <typename Q>
void largest(const Q* const* taps, int n, Q* y, int64_t count) {
  switch (n) {
    case 1: return largest_of<Q, 1>(taps, y, count);
    case 2: return largest_of<Q, 2>(taps, y, count);
    case 3: return largest_of<Q, 3>(taps, y, count);
    case 4: return largest_of<Q, 4>(taps, y, count);
    case 5: return largest_of<Q, 5>(taps, y, count);
    case 6: return largest_of<Q, 6>(taps, y, count);
    case 7: return largest_of<Q, 7>(taps, y, count);
    case 8: return largest_of<Q, 8>(taps, y, count);
    case 9: return largest_of<Q, 9>(taps, y, count);
    default: break;  // a window without a real element
  }
  for (int64_t i = 0; i < count; ++i) y[i] = lowest<Q>();
}

// channels_last: a loop over channels for each window.
template <typename Q>
void channels_last_row(const MaxPoolArgs& a, const Q* plane, const Window& rows, Q* y) {
  const int64_t step = a.columns.dilation * a.channels;
  for (int64_t ow = 0; ow < a.columns.outputs; ++ow, y += a.channels) {
    const Window& columns = a.column_windows[ow];
    const Q* taps[kTaps];
    int n = 0;
    for (int64_t r = 0; r < rows.count; ++r) {
      const int64_t row = rows.start + r * a.rows.dilation;
      const Q* tap = plane + (row * a.columns.size + columns.start) * a.channels;
      for (int64_t c = 0; c < columns.count; ++c, tap += step) {
        if (n == kTaps) {
          largest(taps, n, y, a.channels);
          taps[0] = y;
          n = 1;
        }
        taps[n++] = tap;
      }
    }
    largest(taps, n, y, a.channels);
  }
}

template <typename Q>
void raise(const Q* FXQ_RESTRICT x, int64_t step, Q* FXQ_RESTRICT y, int64_t count) {
  if (step == 1) {
    for (int64_t i = 0; i < count; ++i) y[i] = larger(y[i], x[i]);
  } else if (step == 2) {
    for (int64_t i = 0; i < count; ++i) y[i] = larger(y[i], x[2 * i]);
  } else {
    for (int64_t i = 0; i < count; ++i) y[i] = larger(y[i], x[step * i]);
  }
}

// One channel: a loop over outputs for each element of the window.
template <typename Q>
void single_channel_row(const MaxPoolArgs& a, const Q* plane, const Window& rows, Q* y) {
  const PoolAxis& columns = a.columns;
  for (int64_t ow = 0; ow < columns.outputs; ++ow) y[ow] = lowest<Q>();
  for (int64_t r = 0; r < rows.count; ++r) {
    const Q* row = plane + (rows.start + r * a.rows.dilation) * columns.size;
    for (int64_t k = 0; k < columns.kernel; ++k) {
      const int64_t shift = k * columns.dilation - columns.padding;  // of output 0
      const int64_t first = shift >= 0 ? 0 : (-shift + columns.stride - 1) / columns.stride;
      const int64_t room = columns.size - 1 - shift;
      const int64_t fit = room < 0 ? 0 : room / columns.stride + 1;
      const int64_t stop = fit < columns.outputs ? fit : columns.outputs;
      if (first < stop) raise(row + shift + first * columns.stride, columns.stride, y + first, stop - first);
    }
  }
}

template <typename Q>
void walk(const MaxPoolArgs& a, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    const int64_t n = i / a.rows.outputs;
    const Window& rows = a.row_windows[i % a.rows.outputs];
    const Q* plane = static_cast<const Q*>(a.x) + n * a.rows.size * a.columns.size * a.channels;
    Q* y = static_cast<Q*>(a.y) + i * a.columns.outputs * a.channels;
    a.channels == 1 ? single_channel_row(a, plane, rows, y) : channels_last_row(a, plane, rows, y);
  }
}

}  // namespace

void max_pool2d_loop(const MaxPoolArgs& args, int64_t begin, int64_t end) {
  args.is_signed ? walk<int8_t>(args, begin, end) : walk<uint8_t>(args, begin, end);
}

}  // namespace FXQ_ISA
}  // namespace fxquant
