// Runs what pool/average.h prepared: one thread per element of the result.
#pragma once
#include "cuda/launch.h"
#include "pool/average.h"

namespace fxquant {

// In the order of memory: channels, columns, rows, planes.
template <typename Q>
struct AverageKernel {
  const Q* x;
  uint8_t* y;
  int64_t channels;
  PoolAxis rows;
  PoolAxis columns;
  bool count_padding;
  int64_t divisor;
  float x_scale;
  int32_t x_zero_point;
  OutputQParams y_qparams;

  FXQ_MEMBER void operator()(int64_t i) const {
    const int64_t pixel = i / channels;
    const int64_t row = pixel / columns.outputs;
    const Window h = window_of(rows, row % rows.outputs);
    const Window w = window_of(columns, pixel % columns.outputs);
    const Q* plane = x + row / rows.outputs * rows.size * columns.size * channels + i % channels;
    int64_t sum = -h.count * w.count * x_zero_point;
    for (int64_t r = 0; r < h.count; ++r) {
      for (int64_t c = 0; c < w.count; ++c) {
        sum += plane[((h.start + r) * columns.size + w.start + c) * channels];
      }
    }
    const int64_t elements = count_padding ? h.extent * w.extent : h.count * w.count;
    const float factor = x_scale / static_cast<float>(divisor != 0 ? divisor : elements);
    y[i] = requantize(static_cast<float>(sum) * factor, y_qparams);
  }
};

inline Tensor average_cuda(const Average& a) {
  const Images& im = a.images;
  const auto run = [&](auto q) {
    using Q = decltype(q);
    for_each(im.x, im.y.numel(),
             AverageKernel<Q>{static_cast<const Q*>(im.x.const_data_ptr()),
                              static_cast<uint8_t*>(im.y.mutable_data_ptr()), im.channels, im.rows, im.columns,
                              a.count_padding, a.divisor, a.qparams.x_scale, a.qparams.x_zero_point, a.qparams.y});
  };
  im.x.scalar_type() == ScalarType::Char ? run(int8_t{}) : run(uint8_t{});
  return im.y;
}

}  // namespace fxquant
