#pragma once
#include "cpu/isa.h"
#include "math/requantize.h"

namespace fxquant {

// One input of a cat. All inputs lie in memory in the order of the result.
struct CatPart {
  const void* x;
  int64_t offset;  // of its rows in those of the result
  int64_t length;  // of a row: the dimension of the cat and all inside it
  float scale;
  int32_t zero_point;
  bool copied;  // It has the qparams of the result.

  template <typename Visitor>
  void pointers(Visitor& visit) const {
    visit.tensor(x);
  }
};

struct CatArgs {
  const CatPart* parts;
  int64_t count;  // of them
  int64_t row;  // length of a row of the result
  void* y;
  bool is_signed;
  OutputQParams y_qparams;

  template <typename Visitor>
  void pointers(Visitor& visit) const {
    visit.structs(parts, count);
    visit.tensor(y);
  }
};

}  // namespace fxquant

// The elements begin <= i < end of y, in the order of its memory.
FXQ_DECLARE_LOOP(cat_loop, (const CatArgs& args, int64_t begin, int64_t end))
