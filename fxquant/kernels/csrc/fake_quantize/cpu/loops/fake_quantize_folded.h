#pragma once
#include "common/types.h"
#include "cpu/isa.h"
#include "cpu/loops/channels.h"

namespace fxquant {

// x is [channels, inner], dense; one factor, one scale and one zero point for each channel.
struct FoldedArgs {
  Float type;  // of x, and of whatever else has its shape
  const void* x;
  const void* grad;  // null: the values are wanted
  void* result;      // the values, or the gradient of x
  double* sums;      // of grad times the slope of the factor: [channels]; null with grad
  const double* factor;
  int64_t inner;
  ChannelQParams<float> qparams;          // for every type but double
  ChannelQParams<double> double_qparams;  // for double
};

}  // namespace fxquant

FXQ_DECLARE_LOOP(fake_quantize_folded_loop, (const FoldedArgs& args, int64_t first, int64_t last))
