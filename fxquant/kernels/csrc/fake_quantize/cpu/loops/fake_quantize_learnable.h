#pragma once
#include "common/types.h"
#include "cpu/isa.h"
#include "cpu/loops/channels.h"
#include "fake_quantize/cpu/loops/sums.h"

namespace fxquant {

struct LearnableBackwardArgs {
  Float type;  // of grad, x and dx
  const void* grad;
  const void* x;
  void* dx;
  Layout layout;
  int64_t channels;            // A row of the layout may hold them several times.
  ChannelQParams<float> qparams;          // for every type but double
  ChannelQParams<double> double_qparams;  // for double
  PairedQParams<float> paired;   // the same as qparams, for bfloat16 with channels side by side
};

// What a part of the tensor adds to the gradients of its qparams, in float64: [period] each. Channels side by side may
// repeat within a row of the layout, and a few times within a period.
struct LearnableSums {
  int64_t period;
  double* scale;    // of grad times the slope of the scale
  double* clipped;  // of grad where x was clipped; times -scale it is the gradient of the zero point
};

}  // namespace fxquant

FXQ_DECLARE_LOOP(fake_quantize_learnable_loop,
                 (const LearnableBackwardArgs& args, const LearnableSums& sums, int64_t begin, int64_t end))
