#pragma once
#include "common/strided.h"
#include "cpu/isa.h"

namespace fxquant {

constexpr int64_t kTile = 16;  // elements of both sides of what is transposed at a time

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

  // Whether the last two dimensions change places: what lies side by side in one tensor is far apart in the other.
  bool transposes() const {
    const int last = shape.dims - 1;
    return last > 0 && shape.b_stride[last] == 1 && shape.a_stride[last] != 1 && shape.a_stride[last - 1] == 1 &&
           shape.size[last] >= kTile && shape.size[last - 1] >= kTile;
  }
  int64_t row_tiles() const { return (shape.size[shape.dims - 2] + kTile - 1) / kTile; }
};

}  // namespace fxquant

// The elements begin <= i < end, in the order of the memory of `to`.
FXQ_DECLARE_LOOP(copy_loop, (const CopyArgs& args, int64_t begin, int64_t end))
// Of what transposes: begin and end count tiles of kTile rows of all matrices.
FXQ_DECLARE_LOOP(transpose_loop, (const CopyArgs& args, int64_t begin, int64_t end))
