// Resizes images that lie as [planes][rows][columns][channels]: channels_last, or one channel a plane. A task is one row
// of the result:
//
//   for plane, row:                    # parallel
//       scratch [columns][channels] = weighted sum of the rows of the input, in float32
//       for column: weighted sum of the columns of scratch, for each channel; scale, round, clamp, store
#include "pool/cpu/loops/resample2d.h"

#include "cpu/loops/blocks.h"
#include "cpu/loops/rows.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

// sums[i] = weight[0] * x[i] + weight[1] * x[step + i] + ...: several rows of the input become one.
template <typename Q, int kTaps>
void add_rows(const Q* FXQ_RESTRICT x, int64_t step, const float* weight, int64_t, int32_t zero_point,
              float* FXQ_RESTRICT sums, int64_t count) {
  float w[kTaps];
  for (int k = 0; k < kTaps; ++k) w[k] = weight[k];
  for (int64_t i = 0; i < count; ++i) {
    float sum = w[0] * static_cast<float>(x[i] - zero_point);
    for (int k = 1; k < kTaps; ++k) sum = sum + w[k] * static_cast<float>(x[k * step + i] - zero_point);
    sums[i] = sum;
  }
}

template <typename Q>
void add_many_rows(const Q* FXQ_RESTRICT x, int64_t step, const float* weight, int64_t taps, int32_t zero_point,
                   float* FXQ_RESTRICT sums, int64_t count) {
  add_rows<Q, 1>(x, step, weight, 1, zero_point, sums, count);
  for (int64_t k = 1; k < taps; ++k) {
    const Q* FXQ_RESTRICT tap = x + k * step;
    const float w = weight[k];
    for (int64_t i = 0; i < count; ++i) sums[i] = sums[i] + w * static_cast<float>(tap[i] - zero_point);
  }
}

// One pixel of the output: its channels.
struct Pixel {
  const float* first;
  const float* weight;
  int64_t channels;
  int64_t taps;
  float scale;
  OutputQParams y_qparams;
  uint8_t* y;

  void operator()(int64_t c) const {
    float sum = weight[0] * first[c];
    for (int64_t k = 1; k < taps; ++k) sum = sum + weight[k] * first[k * channels + c];
    y[c] = requantize(sum * scale, y_qparams);
  }
};

struct PixelOfTwo {
  const float* first;
  const float* second;
  float w0;
  float w1;
  float scale;
  OutputQParams y_qparams;
  uint8_t* y;

  void operator()(int64_t c) const { y[c] = requantize((w0 * first[c] + w1 * second[c]) * scale, y_qparams); }
};

void add_columns(const ResampleArgs& a, const float* row, uint8_t* y) {
  for (int64_t ow = 0; ow < a.out_width; ++ow) {
    const float* first = row + a.column_start[ow] * a.channels;
    const float* weight = a.column_weight + ow * a.column_taps;
    uint8_t* pixel = y + ow * a.channels;
    if (a.column_taps == 2) {
      for_each_in_row(a.channels,
                      PixelOfTwo{first, first + a.channels, weight[0], weight[1], a.x_scale, a.y_qparams, pixel});
    } else {
      for_each_in_row(a.channels, Pixel{first, weight, a.channels, a.column_taps, a.x_scale, a.y_qparams, pixel});
    }
  }
}

template <typename Q>
void resample_rows(const ResampleArgs& a, float* row, int64_t begin, int64_t end) {
  const int64_t length = a.width * a.channels;
  const auto add = a.row_taps == 1   ? add_rows<Q, 1>
                   : a.row_taps == 2 ? add_rows<Q, 2>
                   : a.row_taps == 4 ? add_rows<Q, 4>
                                     : add_many_rows<Q>;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t oh = i % a.out_height;
    const Q* x = static_cast<const Q*>(a.x) + (i / a.out_height * a.height + a.row_start[oh]) * length;
    add(x, length, a.row_weight + oh * a.row_taps, a.row_taps, a.x_zero_point, row, length);
    add_columns(a, row, a.y + i * a.out_width * a.channels);
  }
}

}  // namespace

void resample2d_loop(const ResampleArgs& args, float* row, int64_t begin, int64_t end) {
  args.is_signed ? resample_rows<int8_t>(args, row, begin, end) : resample_rows<uint8_t>(args, row, begin, end);
}

}  // namespace FXQ_ISA
}  // namespace fxquant
