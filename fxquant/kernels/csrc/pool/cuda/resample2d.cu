// Resizes images that lie as [planes][rows][columns][channels]. A thread computes one element of the result: for column,
// for row of its taps.
#include "cuda/launch.h"
#include "pool/resample.h"

namespace fxquant {
namespace {

// In the order of memory: channels, columns, rows, planes. Starts that lead out of the image are moved into it: to
// refuse them would mean to wait for the GPU.
template <typename Q>
struct ResampleKernel {
  const Q* x;
  uint8_t* y;
  int64_t channels;
  PoolAxis rows;
  PoolAxis columns;
  const int64_t* row_start;
  const float* row_weight;
  int64_t row_taps;
  const int64_t* column_start;
  const float* column_weight;
  int64_t column_taps;
  float x_scale;
  int32_t x_zero_point;
  OutputQParams y_qparams;

  static FXQ_MEMBER int64_t inside(int64_t start, int64_t most) { return start < 0 ? 0 : start > most ? most : start; }

  // One column of the window.
  FXQ_MEMBER float down(const Q* top, const float* weight) const {
    const int64_t step = columns.size * channels;
    float sum = weight[0] * static_cast<float>(top[0] - x_zero_point);
    for (int64_t k = 1; k < row_taps; ++k) sum = sum + weight[k] * static_cast<float>(top[k * step] - x_zero_point);
    return sum;
  }

  FXQ_MEMBER void operator()(int64_t i) const {
    const int64_t pixel = i / channels;
    const int64_t row = pixel / columns.outputs;
    const int64_t oh = row % rows.outputs;
    const int64_t ow = pixel % columns.outputs;
    const int64_t h = inside(row_start[oh], rows.size - row_taps);
    const int64_t w = inside(column_start[ow], columns.size - column_taps);
    const Q* corner = x + ((row / rows.outputs * rows.size + h) * columns.size + w) * channels + i % channels;
    const float* down_weight = row_weight + oh * row_taps;
    const float* weight = column_weight + ow * column_taps;
    float sum = weight[0] * down(corner, down_weight);
    for (int64_t k = 1; k < column_taps; ++k) sum = sum + weight[k] * down(corner + k * channels, down_weight);
    y[i] = requantize(sum * x_scale, y_qparams);
  }
};

Tensor resample2d_cuda(const Resample2dCall& c) {
  const Resample r = prepare_resample2d(c);
  const Images& im = r.images;
  const auto run = [&](auto q) {
    using Q = decltype(q);
    for_each(im.x, im.y.numel(),
             ResampleKernel<Q>{static_cast<const Q*>(im.x.const_data_ptr()),
                               static_cast<uint8_t*>(im.y.mutable_data_ptr()), im.channels, im.rows, im.columns,
                               static_cast<const int64_t*>(r.rows.start.const_data_ptr()),
                               static_cast<const float*>(r.rows.weight.const_data_ptr()), r.rows.taps,
                               static_cast<const int64_t*>(r.columns.start.const_data_ptr()),
                               static_cast<const float*>(r.columns.weight.const_data_ptr()), r.columns.taps,
                               r.qparams.x_scale, r.qparams.x_zero_point, r.qparams.y});
  };
  im.x.scalar_type() == ScalarType::Char ? run(int8_t{}) : run(uint8_t{});
  return im.y;
}

}  // namespace

FXQ_CUDA_LIBRARY(m) { m.impl("resample2d", FXQ_KERNEL(resample2d_cuda)); }

}  // namespace fxquant
