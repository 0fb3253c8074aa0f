// Normalizes rows that lie one after the other, [rows][columns]. A thread computes one row: it reads it three times, for
// the largest magnitude, for the sums, and for the result.
#include "norm/layer_norm.h"

#include "cuda/launch.h"

namespace fxquant {
namespace {

// A thread for each row.
template <typename T>
struct NormalizeRow {
  const T* x;
  const float* weight;
  const float* bias;
  uint8_t* y;
  int64_t columns;
  double eps;
  OutputQParams y_qparams;

  FXQ_MEMBER void operator()(int64_t row) const {
    const T* in = x + row * columns;
    int32_t k = 0;
    bool finite = true;
    if constexpr (sizeof(T) == sizeof(float)) {
      uint32_t largest = 0;
      for (int64_t i = 0; i < columns; ++i) {
        const uint32_t magnitude = bits_of_float(in[i]) & 0x7fffffffu;
        largest = magnitude > largest ? magnitude : largest;
      }
      finite = largest < 0x7f800000u;
      k = step_exponent(largest);
    }
    const float factor = power_of_two(k);
    int64_t sum = 0;
    int64_t squares = 0;
    for (int64_t i = 0; finite && i < columns; ++i) {
      const int32_t step = to_steps(static_cast<float>(in[i]), factor);
      sum += step;
      squares += static_cast<int64_t>(step) * step;
    }
    const Moments m = finite ? moments_of(sum, squares, columns, eps_in_steps(eps, k))
                             : Moments{0, 0.0f, float_of_bits(0x7fc00000u)};
    for (int64_t i = 0; i < columns; ++i) {
      const int32_t step = finite ? to_steps(static_cast<float>(in[i]), factor) : 0;
      y[row * columns + i] = requantize(normalized(step, m, weight[i], bias[i]), y_qparams);
    }
  }
};

Tensor layer_norm_cuda(const LayerNormCall& c) {
  const LayerNorm n = prepare_layer_norm(c);
  const Rows& r = n.rows;
  const auto run = [&](auto element) {
    using T = decltype(element);
    for_each(r.x, r.count,
             NormalizeRow<T>{static_cast<const T*>(r.x.const_data_ptr()),
                             static_cast<const float*>(n.weight.const_data_ptr()),
                             static_cast<const float*>(n.bias.const_data_ptr()),
                             static_cast<uint8_t*>(r.y.mutable_data_ptr()), r.columns, n.eps, r.y_qparams});
  };
  switch (r.type) {
    case RowType::kFloat: run(float{}); break;
    case RowType::kUint8: run(uint8_t{}); break;
    case RowType::kInt8: run(int8_t{}); break;
  }
  return r.y;
}

}  // namespace

FXQ_CUDA_LIBRARY(m) { m.impl("layer_norm", FXQ_KERNEL(layer_norm_cuda)); }

}  // namespace fxquant
