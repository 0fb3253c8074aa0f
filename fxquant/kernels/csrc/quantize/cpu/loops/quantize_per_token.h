#pragma once
#include "common/types.h"
#include "cpu/isa.h"
#include "math/qparams.h"

namespace fxquant {

struct QuantizePerTokenArgs {
  Float type;  // of x
  bool to_signed;
  const void* x;  // [rows, columns]
  void* q;
  float* scale;         // [rows]
  int32_t* zero_point;  // [rows]
  int64_t columns;
  QParamsOptions choice;

  template <typename Visitor>
  void pointers(Visitor& visit) const {
    visit.tensor(x);
    visit.tensor(q);
    visit.tensor(scale);
    visit.tensor(zero_point);
  }
};

// The same of one long row, which is measured and quantized in parts.
struct QuantizePartsArgs {
  QuantizePerTokenArgs row;
  int32_t* keys;  // [parts, 2]: of the smallest and of the largest finite value of each part
  int64_t parts;

  int64_t begin_of(int64_t part) const { return row.columns * part / parts; }

  template <typename Visitor>
  void pointers(Visitor& visit) const {
    row.pointers(visit);
    visit.tensor(keys);
  }
};

}  // namespace fxquant

// Quantizes the rows begin <= i < end.
FXQ_DECLARE_LOOP(quantize_per_token_loop, (const QuantizePerTokenArgs& args, int64_t begin, int64_t end))
// Measures the parts begin <= i < end, and then, when all are measured, quantizes them.
FXQ_DECLARE_LOOP(measure_parts_loop, (const QuantizePartsArgs& args, int64_t begin, int64_t end))
FXQ_DECLARE_LOOP(quantize_parts_loop, (const QuantizePartsArgs& args, int64_t begin, int64_t end))
