// Takes the largest value of windows of images that lie as [planes][rows][columns][channels]. A thread computes one
// element of the result: for row, for column of its window. Neighbouring threads read neighbouring channels.
#include "cuda/launch.h"
#include "pool/pool.h"

namespace fxquant {
namespace {

// One thread per element of the result, in the order of memory: channels, columns, rows, planes.
template <typename Q>
struct MaxPoolKernel {
  const Q* x;
  Q* y;
  int64_t channels;
  PoolAxis rows;
  PoolAxis columns;
  Q lowest;

  FXQ_MEMBER void operator()(int64_t i) const {
    const int64_t pixel = i / channels;
    const int64_t row = pixel / columns.outputs;
    const Window h = window_of(rows, row % rows.outputs);
    const Window w = window_of(columns, pixel % columns.outputs);
    const Q* plane = x + row / rows.outputs * rows.size * columns.size * channels + i % channels;
    Q largest = lowest;
    for (int64_t r = 0; r < h.count; ++r) {
      for (int64_t c = 0; c < w.count; ++c) {
        const int64_t at = (h.start + r * rows.dilation) * columns.size + w.start + c * columns.dilation;
        const Q q = plane[at * channels];
        largest = q > largest ? q : largest;
      }
    }
    y[i] = largest;
  }
};

template <typename Q>
void pool(const Images& im) {
  const auto lowest = static_cast<Q>(smallest_of(im.x.scalar_type()));
  for_each(im.x, im.y.numel(),
           MaxPoolKernel<Q>{static_cast<const Q*>(im.x.const_data_ptr()), static_cast<Q*>(im.y.mutable_data_ptr()),
                            im.channels, im.rows, im.columns, lowest});
}

Tensor max_pool2d_cuda(const MaxPool2dCall& c) {
  const Images im = prepare_max_pool2d(c);
  im.x.scalar_type() == ScalarType::Char ? pool<int8_t>(im) : pool<uint8_t>(im);
  return im.y;
}

}  // namespace

FXQ_CUDA_LIBRARY(m) { m.impl("max_pool2d", FXQ_KERNEL(max_pool2d_cuda)); }

}  // namespace fxquant
