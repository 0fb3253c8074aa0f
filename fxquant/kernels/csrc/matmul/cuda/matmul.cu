#include "matmul/matmul.h"

#include "cuda/launch.h"

namespace fxquant {
namespace {

FXQ_HOST_DEVICE int32_t step_of(const Factor& factor, int64_t at) {
  const int32_t flip = factor.is_signed ? 0x80 : 0;  // (q ^ 0x80) - 128 is q as an int8
  return (factor.data[at] ^ flip) - flip - factor.zero_point;
}

// One thread for each element of the result.
struct MatmulKernel {
  Factor a;
  Factor b;
  int64_t rows;
  int64_t k_size;
  int64_t columns;
  float scale;
  OutputQParams y_qparams;
  uint8_t* y;  // one of both
  float* y_float;

  FXQ_MEMBER void operator()(int64_t i) const {
    const int64_t row = i / columns;
    const int64_t batch = row / rows;
    const int64_t at = place_of(a.matrices, batch) + row % rows * a.outer_stride;
    const int64_t bt = place_of(b.matrices, batch) + i % columns * b.outer_stride;
    int32_t sum = 0;
    for (int64_t k = 0; k < k_size; ++k) sum += step_of(a, at + k * a.k_stride) * step_of(b, bt + k * b.k_stride);
    const float real = static_cast<float>(sum) * scale;
    if (y_float != nullptr) {
      y_float[i] = real;
    } else {
      y[i] = requantize(real, y_qparams);
    }
  }
};

Tensor matmul_cuda(const MatmulCall& c) {
  const Matmul m = prepare_matmul(c);
  for_each(m.y, m.y.numel(),
           MatmulKernel{m.a, m.b, m.rows, m.k_size, m.columns, m.scale, m.y_qparams,
                        m.is_float ? nullptr : static_cast<uint8_t*>(m.y.mutable_data_ptr()),
                        m.is_float ? m.y.mutable_data_ptr<float>() : nullptr});
  return m.y;
}

}  // namespace

FXQ_CUDA_LIBRARY(m) { m.impl("matmul", FXQ_KERNEL(matmul_cuda)); }

}  // namespace fxquant
