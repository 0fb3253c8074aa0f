// What the rows hold that softmax and layer_norm normalize. No torch.
#pragma once
#include <cstdint>

namespace fxquant {

enum class RowType : int32_t { kFloat, kUint8, kInt8 };

}  // namespace fxquant
