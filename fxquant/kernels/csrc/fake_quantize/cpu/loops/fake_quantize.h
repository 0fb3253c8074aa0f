#pragma once
#include "common/types.h"
#include "cpu/isa.h"
#include "cpu/loops/channels.h"

namespace fxquant {

struct FakeQuantizeArgs {
  Float type;  // of x and y
  const void* x;
  void* y;
  bool* mask;  // true where the gradient passes; null: not wanted
  Layout layout;
  int64_t channels;            // A row of the layout may hold them several times.
  ChannelQParams<float> qparams;          // for every type but double
  ChannelQParams<double> double_qparams;  // for double
  PairedQParams<float> paired;   // the same as qparams, for bfloat16 with channels side by side
};

struct FakeQuantizeBackwardArgs {
  Float type;  // of grad and result
  const void* grad;
  const bool* mask;
  void* result;
};

}  // namespace fxquant

FXQ_DECLARE_LOOP(fake_quantize_loop, (const FakeQuantizeArgs& args, int64_t begin, int64_t end))
FXQ_DECLARE_LOOP(fake_quantize_backward_loop, (const FakeQuantizeBackwardArgs& args, int64_t begin, int64_t end))
