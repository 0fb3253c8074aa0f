// Joins tensors that lie as [rows][length] to [rows][sum of lengths]. A kernel runs for each tensor, with a thread for
// each of its elements.
#include "elementwise/cat.h"

#include "cuda/launch.h"

namespace fxquant {
namespace {

// One input: element i of it goes to its place in the rows of the result.
template <typename Q>
struct CatKernel {
  const Q* x;
  uint8_t* y;
  int64_t length;  // of a row of x
  int64_t row;     // of a row of y
  int64_t offset;  // of x in a row of y
  float scale;
  int32_t zero_point;
  bool copied;
  OutputQParams y_qparams;

  FXQ_MEMBER void operator()(int64_t i) const {
    const int64_t at = i / length * row + offset + i % length;
    y[at] = copied ? static_cast<uint8_t>(x[i]) : requantize(dequantize(x[i], scale, zero_point), y_qparams);
  }
};

template <typename Q>
void join(const Cat& cat) {
  int64_t row = 0;
  for (size_t i = 0; i < cat.parts.size(); ++i) row += cat.length(i);
  int64_t offset = 0;
  for (size_t i = 0; i < cat.parts.size(); ++i) {
    const Tensor& x = cat.parts[i];
    for_each(x, x.numel(),
             CatKernel<Q>{static_cast<const Q*>(x.const_data_ptr()), static_cast<uint8_t*>(cat.y.mutable_data_ptr()),
                          cat.length(i), row, offset, cat.scales[i], cat.zero_points[i], cat.copied[i], cat.y_qparams});
    offset += cat.length(i);
  }
}

Tensor cat_cuda(const CatCall& c) {
  const Cat cat = prepare_cat(c);
  cat.y.scalar_type() == ScalarType::Char ? join<int8_t>(cat) : join<uint8_t>(cat);
  return cat.y;
}

}  // namespace

FXQ_CUDA_LIBRARY(m) { m.impl("cat", FXQ_KERNEL(cat_cuda)); }

}  // namespace fxquant
