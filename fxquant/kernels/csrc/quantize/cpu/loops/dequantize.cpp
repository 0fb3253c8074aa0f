// Dequantization: y = (q - zero_point) * scale, float32. The dense tensor is seen as [outer, channels, inner], as for
// quantize.cpp:
//
//   for range of elements in tasks:         # in parallel
//       for stretch of one channel, or row of channels side by side:
//           for element: subtract, multiply
#include "quantize/cpu/loops/dequantize.h"

#include "cpu/loops/channels.h"
#include "math/affine.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

template <bool wide>
float float_value(int32_t q, float scale, int32_t zero_point) {
  return wide ? dequantize_wide(q, scale, zero_point) : dequantize(q, scale, zero_point);
}

template <bool wide, typename Q>
void run(const Q* FXQ_RESTRICT q, float* FXQ_RESTRICT y, int64_t count, float scale, int32_t zero_point) {
  for (int64_t i = 0; i < count; ++i) y[i] = float_value<wide>(q[i], scale, zero_point);
}

template <bool wide, typename Q>
void row(const Q* FXQ_RESTRICT q, float* FXQ_RESTRICT y, int64_t count, const float* FXQ_RESTRICT scale,
         const int32_t* FXQ_RESTRICT zero_point) {
  for (int64_t i = 0; i < count; ++i) y[i] = float_value<wide>(q[i], scale[i], zero_point[i]);
}

template <bool wide, typename Q>
void dequantize_range(const DequantizeArgs& a, int64_t begin, int64_t end) {
  const Q* q = static_cast<const Q*>(a.q);
  for_each_channel(
      a.layout, begin, end,
      [&](int64_t i, int64_t count, int64_t c) { run<wide>(q + i, a.y + i, count, a.scale[c], a.zero_point[c]); },
      [&](int64_t i, int64_t count, int64_t c) { row<wide>(q + i, a.y + i, count, a.scale + c, a.zero_point + c); });
}

template <bool wide>
void with_type(const DequantizeArgs& args, int64_t begin, int64_t end) {
  switch (args.type) {
    case Integer::kUint8: return dequantize_range<wide, uint8_t>(args, begin, end);
    case Integer::kInt8: return dequantize_range<wide, int8_t>(args, begin, end);
    case Integer::kInt16: return dequantize_range<wide, int16_t>(args, begin, end);
    case Integer::kInt32: return dequantize_range<wide, int32_t>(args, begin, end);
  }
}

}  // namespace

void dequantize_loop(const DequantizeArgs& args, int64_t begin, int64_t end) {
  args.wide ? with_type<true>(args, begin, end) : with_type<false>(args, begin, end);
}

}  // namespace FXQ_ISA
}  // namespace fxquant
