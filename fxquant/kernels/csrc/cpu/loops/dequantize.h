#pragma once
#include "../../common/layout.h"
#include "../isa.h"

namespace fxquant {

enum class Integer : int32_t { kUint8, kInt8, kInt16, kInt32 };

struct DequantizeArgs {
  const void* q;
  Integer type;  // of q
  float* y;
  Layout layout;
  const float* scale;         // [channels]
  const int32_t* zero_point;  // [channels]
};

}  // namespace fxquant

FXQ_DECLARE_LOOP(dequantize_loop, (const DequantizeArgs& args, int64_t begin, int64_t end))
