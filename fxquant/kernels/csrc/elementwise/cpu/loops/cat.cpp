// Joins tensors that lie as [rows][length], each with its own length, to [rows][sum of lengths]. A task is a stretch of
// the result: for row, for tensor: copy the length, or requantize it.
#include "elementwise/cpu/loops/cat.h"

#include "cpu/loops/rows.h"
#include "math/affine.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

template <typename Q>
struct RequantizeRow {
  const Q* x;
  uint8_t* y;
  float scale;
  int32_t zero_point;
  OutputQParams y_qparams;

  void operator()(int64_t i) const { y[i] = requantize(dequantize(x[i], scale, zero_point), y_qparams); }
};

template <typename Q>
void cat_range(const CatArgs& a, int64_t begin, int64_t end) {
  uint8_t* y = static_cast<uint8_t*>(a.y);
  int64_t outer = begin / a.row;
  int64_t inner = begin % a.row;
  const CatPart* part = a.parts;
  while (inner >= part->offset + part->length) ++part;
  while (begin < end) {
    const int64_t left = part->offset + part->length - inner;
    const int64_t count = left < end - begin ? left : end - begin;
    const Q* x = static_cast<const Q*>(part->x) + outer * part->length + (inner - part->offset);
    if (part->copied) {
      std::memcpy(y + begin, x, count);
    } else {
      for_each_in_row(count, RequantizeRow<Q>{x, y + begin, part->scale, part->zero_point, a.y_qparams});
    }
    begin += count;
    inner += count;
    ++part;
    if (inner == a.row) {
      inner = 0;
      ++outer;
      part = a.parts;
    }
  }
}

}  // namespace

void cat_loop(const CatArgs& args, int64_t begin, int64_t end) {
  args.is_signed ? cat_range<int8_t>(args, begin, end) : cat_range<uint8_t>(args, begin, end);
}

}  // namespace FXQ_ISA
}  // namespace fxquant
