// Computes softmax of rows that lie one after the other, [rows][columns]. A thread computes one row: it reads it three
// times, for the largest value, for the sum of the exponentials, and for the result.
#include "cuda/launch.h"
#include "math/histogram.h"
#include "math/softmax.h"
#include "norm/normalize.h"

namespace fxquant {
namespace {

// A thread for each row. The exponentials are made twice: once for their sum.
struct FloatRow {
  const float* x;
  uint8_t* y;
  int64_t columns;
  bool safe;
  OutputQParams y_qparams;

  FXQ_MEMBER void operator()(int64_t row) const {
    const float* in = x + row * columns;
    KeyRange keys{INT32_MAX, INT32_MIN};
    for (int64_t i = 0; i < columns; ++i) {
      const int32_t key = key_of(in[i]);
      keys.smallest = key < keys.smallest ? key : keys.smallest;
      keys.largest = key > keys.largest ? key : keys.largest;
    }
    const float largest = of_key(keys.largest);
    int64_t sum = 0;
    for (int64_t i = 0; i < columns; ++i) sum += exp_steps(in[i] - largest);
    const float factor = softmax_factor(sum, keys, safe);
    for (int64_t i = 0; i < columns; ++i) {
      y[row * columns + i] = requantize(static_cast<float>(exp_steps(in[i] - largest)) * factor, y_qparams);
    }
  }
};

template <typename Q>
struct QuantizedRow {
  const Q* x;
  uint8_t* y;
  int64_t columns;
  float x_scale;
  OutputQParams y_qparams;

  FXQ_MEMBER void operator()(int64_t row) const {
    const Q* in = x + row * columns;
    int32_t largest = in[0];
    for (int64_t i = 1; i < columns; ++i) largest = in[i] > largest ? in[i] : largest;
    int64_t sum = 0;
    for (int64_t i = 0; i < columns; ++i) sum += steps(in[i] - largest);
    const float factor = softmax_factor(sum, {0, 0}, false);
    for (int64_t i = 0; i < columns; ++i) {
      y[row * columns + i] = requantize(static_cast<float>(steps(in[i] - largest)) * factor, y_qparams);
    }
  }

  FXQ_MEMBER int32_t steps(int32_t difference) const { return exp_steps(static_cast<float>(difference) * x_scale); }
};

Tensor softmax_cuda(const SoftmaxCall& c) {
  const Rows r = prepare_rows("fxquant::softmax", c);
  auto* y = static_cast<uint8_t*>(r.y.mutable_data_ptr());
  const void* from = r.x.const_data_ptr();
  switch (r.type) {
    case RowType::kFloat:
      for_each(r.x, r.count, FloatRow{static_cast<const float*>(from), y, r.columns, c.safe, r.y_qparams});
      break;
    case RowType::kUint8:
      for_each(r.x, r.count,
               QuantizedRow<uint8_t>{static_cast<const uint8_t*>(from), y, r.columns, r.x_scale, r.y_qparams});
      break;
    case RowType::kInt8:
      for_each(r.x, r.count,
               QuantizedRow<int8_t>{static_cast<const int8_t*>(from), y, r.columns, r.x_scale, r.y_qparams});
      break;
  }
  return r.y;
}

}  // namespace

FXQ_CUDA_LIBRARY(m) { m.impl("softmax", FXQ_KERNEL(softmax_cuda)); }

}  // namespace fxquant
