// Computes on pairs of elements: for row of the result's memory, for element of it. Strides say how each input advances.
#include "elementwise/cpu/loops/elementwise.h"

#include "cpu/loops/rows.h"
#include "math/affine.h"
#include "math/prelu.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

struct Add {
  float a_scale;
  float b_scale;
  int32_t a_zero_point;
  int32_t b_zero_point;

  explicit Add(const ElementwiseArgs& x)
      : a_scale(x.a_scale), b_scale(x.b_scale), a_zero_point(x.a_zero_point), b_zero_point(x.b_zero_point) {}
  float operator()(int32_t a, int32_t b) const {
    return dequantize(a, a_scale, a_zero_point) + dequantize(b, b_scale, b_zero_point);
  }
};

struct Mul {
  float scale;
  int32_t a_zero_point;
  int32_t b_zero_point;

  explicit Mul(const ElementwiseArgs& x)
      : scale(x.a_scale * x.b_scale), a_zero_point(x.a_zero_point), b_zero_point(x.b_zero_point) {}
  float operator()(int32_t a, int32_t b) const {
    // The product of integers stays below 2^16, so float32 has it exactly, and multiplies faster than int32.
    return static_cast<float>(a - a_zero_point) * static_cast<float>(b - b_zero_point) * scale;
  }
};

struct PRelu {
  float scale;
  int32_t zero_point;

  explicit PRelu(const ElementwiseArgs& x) : scale(x.a_scale), zero_point(x.a_zero_point) {}
  float operator()(int32_t a, float slope) const { return prelu(dequantize(a, scale, zero_point), slope); }
};

// How a row of one input advances. Constants where they matter, so that the loop below vectorises.
struct Dense {
  int64_t operator()(int64_t i) const { return i; }
};
struct Repeated {
  int64_t operator()(int64_t) const { return 0; }
};
struct Strided {
  int64_t stride;
  int64_t operator()(int64_t i) const { return i * stride; }
};

template <typename Q, typename R, typename Op, typename A, typename B>
struct Row {
  const Q* a;
  A at;
  const R* b;
  B bt;
  uint8_t* y;
  Op op;
  OutputQParams y_qparams;

  void operator()(int64_t i) const { y[i] = requantize(op(a[at(i)], b[bt(i)]), y_qparams); }
};

template <typename Q, typename R, typename Op, typename A, typename B>
void row(const Q* a, A at, const R* b, B bt, uint8_t* y, int64_t count, const Op& op, const OutputQParams& y_qparams) {
  for_each_in_row(count, Row<Q, R, Op, A, B>{a, at, b, bt, y, op, y_qparams});
}

template <typename Q, typename R, typename Op>
void any_row(const Q* a, int64_t a_stride, const R* b, int64_t b_stride, uint8_t* y, int64_t count, const Op& op,
             const OutputQParams& y_qparams) {
  if (a_stride == 1 && b_stride == 1) return row(a, Dense{}, b, Dense{}, y, count, op, y_qparams);
  if (a_stride == 1 && b_stride == 0) return row(a, Dense{}, b, Repeated{}, y, count, op, y_qparams);
  if (a_stride == 0 && b_stride == 1) return row(a, Repeated{}, b, Dense{}, y, count, op, y_qparams);
  return row(a, Strided{a_stride}, b, Strided{b_stride}, y, count, op, y_qparams);
}

// The second input is of bytes too, or of floats.
template <typename Q, typename R, typename Op>
void elementwise_range(const ElementwiseArgs& x, int64_t begin, int64_t end) {
  const StridedPair& s = *x.shape;
  const Op op(x);
  const int inner = s.dims - 1;
  int64_t index[kMaxDims];
  int64_t a = 0;
  int64_t b = 0;
  for (int64_t d = inner, rest = begin; d >= 0; --d) {
    index[d] = rest % s.size[d];
    rest /= s.size[d];
    a += index[d] * s.a_stride[d];
    b += index[d] * s.b_stride[d];
  }
  while (begin < end) {
    const int64_t left = s.size[inner] - index[inner];
    const int64_t count = left < end - begin ? left : end - begin;
    any_row(static_cast<const Q*>(x.a) + a, s.a_stride[inner], static_cast<const R*>(x.b) + b, s.b_stride[inner],
            static_cast<uint8_t*>(x.y) + begin, count, op, x.y_qparams);
    begin += count;
    a += (count - s.size[inner]) * s.a_stride[inner];  // back to the start of the row
    b += (count - s.size[inner]) * s.b_stride[inner];
    index[inner] = 0;
    for (int d = inner - 1; d >= 0; --d) {
      a += s.a_stride[d];
      b += s.b_stride[d];
      if (++index[d] < s.size[d]) break;
      a -= s.size[d] * s.a_stride[d];
      b -= s.size[d] * s.b_stride[d];
      index[d] = 0;
    }
  }
}

}  // namespace

void add_loop(const ElementwiseArgs& args, int64_t begin, int64_t end) {
  args.is_signed ? elementwise_range<int8_t, int8_t, Add>(args, begin, end)
                 : elementwise_range<uint8_t, uint8_t, Add>(args, begin, end);
}

void mul_loop(const ElementwiseArgs& args, int64_t begin, int64_t end) {
  args.is_signed ? elementwise_range<int8_t, int8_t, Mul>(args, begin, end)
                 : elementwise_range<uint8_t, uint8_t, Mul>(args, begin, end);
}

void prelu_loop(const ElementwiseArgs& args, int64_t begin, int64_t end) {
  args.is_signed ? elementwise_range<int8_t, float, PRelu>(args, begin, end)
                 : elementwise_range<uint8_t, float, PRelu>(args, begin, end);
}

}  // namespace FXQ_ISA
}  // namespace fxquant
