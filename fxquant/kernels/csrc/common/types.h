// Names of element types. No torch.
#pragma once
#include <cstdint>

namespace fxquant {

enum class Integer : int32_t { kUint8, kInt8, kInt16, kInt32 };
enum class Float : int32_t { kFloat, kDouble, kHalf, kBFloat16 };

}  // namespace fxquant
