// Rows are measured as channels are, by blocks of threads; then one thread quantizes each value. A whole tensor is one row.
#pragma once
#include "fake_quantize/cuda/extremes.h"
#include "quantize/quantize_per_token.h"

namespace fxquant {

struct ChooseRow {
  QParamsOptions choice;
  float* scale;
  int32_t* zero_point;

  FXQ_MEMBER void operator()(int64_t row, const Extremes& extremes) const {
    const ChosenQParams chosen = choose_qparams(extremes.range(), choice);
    scale[row] = chosen.scale;
    zero_point[row] = chosen.zero_point;
  }
};

template <typename T>
struct QuantizeByRow {
  using Real = typename Number<T>::Real;
  const T* x;
  const float* scale;
  const int32_t* zero_point;
  uint8_t* q;  // the low byte of an integer is that of uint8 and of int8
  int64_t columns;
  Real low;
  Real high;

  FXQ_MEMBER void operator()(int64_t i) const {
    const int64_t row = i / columns;
    const Real step = scale[row];
    const Affine<Real> a{step, Real{1} / step, static_cast<Real>(zero_point[row]), low, high};
    q[i] = static_cast<uint8_t>(static_cast<int32_t>(saturate(round_to_quantized(Number<T>::load(x[i]), a), a)));
  }
};

struct QuantizeRows {
  const QuantizePerToken& c;

  template <typename T>
  void go() const {
    using Real = typename Number<T>::Real;
    const T* x = static_cast<const T*>(c.x.const_data_ptr());
    float* scale = c.scale.mutable_data_ptr<float>();
    int32_t* zero_point = c.zero_point.mutable_data_ptr<int32_t>();
    reduce_channels(c.x, MeasureExtremes<T>{x}, Layout{1, c.rows, c.columns}, ChooseRow{c.choice, scale, zero_point});
    for_each(c.x, c.x.numel(),
             QuantizeByRow<T>{x, scale, zero_point, static_cast<uint8_t*>(c.q.mutable_data_ptr()), c.columns,
                              static_cast<Real>(c.choice.quant_min), static_cast<Real>(c.choice.quant_max)});
  }
};

inline void quantize_rows_cuda(const QuantizePerToken& c) { with_float(c.type, QuantizeRows{c}); }

}  // namespace fxquant
