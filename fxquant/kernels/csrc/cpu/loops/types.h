// Names of element types that can stand in an argument list of a loop. No torch.
#pragma once
#include <cstdint>

namespace fxquant {

enum class Integer : int32_t { kUint8, kInt8, kInt16, kInt32 };
enum class Float : int32_t { kFloat, kDouble, kHalf, kBFloat16 };

}  // namespace fxquant
