#pragma once
#include "../isa.h"
#include "channels.h"
#include "../../common/types.h"

namespace fxquant {

// A sum runs in this many lanes, whatever the instruction set, so that all of them round alike.
constexpr int64_t kSumLanes = 16;

struct LearnableBackwardArgs {
  Float type;  // of grad, x and dx
  const void* grad;
  const void* x;
  void* dx;
  Layout layout;
  Grids<float> grids;          // for every type but double
  Grids<double> double_grids;  // for double
};

// What a stretch of the tensor adds to the gradients of its grids, in float64: [period] each. Channels side by side may
// repeat within a row of the layout, and a few times within a period.
struct LearnableSums {
  int64_t period;
  double* scale;    // of grad times the slope of the scale
  double* clipped;  // of grad where x was clipped; times -scale it is the gradient of the zero point
};

}  // namespace fxquant

FXQ_DECLARE_LOOP(fake_quantize_learnable_loop,
                 (const LearnableBackwardArgs& args, const LearnableSums& sums, int64_t begin, int64_t end))
