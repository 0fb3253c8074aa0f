#pragma once
#include "../../common/strided.h"
#include "../isa.h"

namespace fxquant {

struct CopyArgs {
  const uint8_t* from;
  uint8_t* to;
  int64_t element;    // bytes: 1, 2, 4 or 8
  StridedPair shape;  // a: from, b: to

  template <typename Visitor>
  void pointers(Visitor& visit) const {
    visit.tensor(from);
    visit.tensor(to);
  }
};

}  // namespace fxquant

// The elements begin <= i < end, in the order of the memory of `to`.
FXQ_DECLARE_LOOP(copy_loop, (const CopyArgs& args, int64_t begin, int64_t end))
