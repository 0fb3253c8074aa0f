// Takes the largest value of windows of images that lie as [planes][rows][columns][channels]: channels_last, or one
// channel a plane. A task is one row of the result:
//
//   for plane, row:                    # parallel
//       scratch = the largest of the window's rows, nine at a time, for each element of a row of the input
//       for column:                    # channels_last; one channel: for column of the window, for column
//           the largest of the window's elements of scratch, for each channel
#include "pool/cpu/loops/max_pool2d.h"

#include "cpu/loops/channels.h"
#include "cpu/loops/loop_pragmas.h"

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

constexpr int kTaps = 9;  // read at once

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

// The largest of each column of the window's rows: a row of the input's width, in scratch or the only row itself.
template <typename Q>
const Q* over_rows(const MaxPoolArgs& a, const Q* plane, const Window& rows, Q* scratch) {
  const int64_t length = a.columns.size * a.channels;
  const Q* first = plane + rows.start * length;
  if (rows.count == 1) return first;
  const Q* taps[kTaps];
  int n = 0;
  for (int64_t r = 0; r < rows.count; ++r) {
    if (n == kTaps) {
      largest(taps, n, scratch, length);
      taps[0] = scratch;
      n = 1;
    }
    taps[n++] = first + r * a.rows.dilation * length;
  }
  largest(taps, n, scratch, length);
  return scratch;
}

// Windows of N columns, all of them real: no pointers to gather.
template <typename Q, int N>
void over_columns(const Q* x, int64_t step, int64_t advance, Q* y, int64_t outputs, int64_t channels) {
  for (int64_t o = 0; o < outputs; ++o, x += advance, y += channels) {
    FXQ_INDEPENDENT
    for (int64_t i = 0; i < channels; ++i) {
      Q largest = x[i];
      for (int k = 1; k < N; ++k) largest = larger(largest, x[i + k * step]);
      y[i] = largest;
    }
  }
}

template <typename Q>
void over_any_columns(const MaxPoolArgs& a, const Q* row, const Window& columns, Q* y) {
  const Q* taps[kTaps];
  int n = 0;
  for (int64_t c = 0; c < columns.count; ++c) {
    if (n == kTaps) {
      largest(taps, n, y, a.channels);
      taps[0] = y;
      n = 1;
    }
    taps[n++] = row + (columns.start + c * a.columns.dilation) * a.channels;
  }
  largest(taps, n, y, a.channels);
}

// channels_last: a loop over channels for each window.
template <typename Q>
void channels_last_row(const MaxPoolArgs& a, const Q* row, Q* y) {
  const int64_t kernel = a.columns.kernel;
  const int64_t step = a.columns.dilation * a.channels;
  const int64_t advance = a.columns.stride * a.channels;
  for (int64_t ow = 0; ow < a.columns.outputs;) {
    int64_t stop = ow;
    while (kernel <= 3 && stop < a.columns.outputs && a.column_windows[stop].count == kernel) ++stop;
    const Q* first = row + a.column_windows[ow].start * a.channels;
    Q* out = y + ow * a.channels;
    if (stop == ow) {
      over_any_columns(a, row, a.column_windows[ow], out);
      ++ow;
      continue;
    }
    if (kernel == 3) over_columns<Q, 3>(first, step, advance, out, stop - ow, a.channels);
    if (kernel == 2) over_columns<Q, 2>(first, step, advance, out, stop - ow, a.channels);
    if (kernel == 1) over_columns<Q, 1>(first, step, advance, out, stop - ow, a.channels);
    ow = stop;
  }
}

template <typename Q>
void take_larger(const Q* FXQ_RESTRICT x, int64_t step, Q* FXQ_RESTRICT y, int64_t count) {
  if (step == 1) {
    for (int64_t i = 0; i < count; ++i) y[i] = larger(y[i], x[i]);
  } else if (step == 2) {
    for (int64_t i = 0; i < count; ++i) y[i] = larger(y[i], x[2 * i]);
  } else {
    for (int64_t i = 0; i < count; ++i) y[i] = larger(y[i], x[step * i]);
  }
}

// One channel: a loop over outputs for each column of the window.
template <typename Q>
void single_channel_row(const PoolAxis& columns, const Q* row, Q* y) {
  for (int64_t ow = 0; ow < columns.outputs; ++ow) y[ow] = lowest<Q>();
  for (int64_t k = 0; k < columns.kernel; ++k) {
    const int64_t shift = k * columns.dilation - columns.padding;  // of output 0
    const int64_t first = shift >= 0 ? 0 : (-shift + columns.stride - 1) / columns.stride;
    const int64_t room = columns.size - 1 - shift;
    const int64_t fit = room < 0 ? 0 : room / columns.stride + 1;
    const int64_t stop = fit < columns.outputs ? fit : columns.outputs;
    if (first < stop) take_larger(row + shift + first * columns.stride, columns.stride, y + first, stop - first);
  }
}

template <typename Q>
void pool_rows(const MaxPoolArgs& a, int64_t begin, int64_t end, Q* scratch) {
  for (int64_t i = begin; i < end; ++i) {
    const int64_t n = i / a.rows.outputs;
    const Window& rows = a.row_windows[i % a.rows.outputs];
    const Q* plane = static_cast<const Q*>(a.x) + n * a.rows.size * a.columns.size * a.channels;
    const Q* row = over_rows(a, plane, rows, scratch);
    Q* y = static_cast<Q*>(a.y) + i * a.columns.outputs * a.channels;
    a.channels == 1 ? single_channel_row(a.columns, row, y) : channels_last_row(a, row, y);
  }
}

}  // namespace

void max_pool2d_loop(const MaxPoolArgs& args, int64_t begin, int64_t end, uint8_t* scratch) {
  if (args.is_signed) {
    pool_rows(args, begin, end, reinterpret_cast<int8_t*>(scratch));
  } else {
    pool_rows(args, begin, end, scratch);
  }
}

}  // namespace FXQ_ISA
}  // namespace fxquant
