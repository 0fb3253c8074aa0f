// Which bytes of the LHS are multiplied. No torch.
//
// Results are those of unsigned bytes x. The instructions of x86, and sudot of ARM, multiply unsigned bytes by signed ones. sdot
// multiplies signed bytes: there x - 128 is multiplied, and whoever sets initial accumulators adds 128 times the sum of the
// weights. So a stored int8 is multiplied as it is, and of a uint8 the sign bit is flipped.
#pragma once
#include <cstdint>

namespace fxquant {
namespace FXQ_ISA {
namespace {

#if defined(__ARM_FEATURE_DOTPROD) && !defined(__ARM_FEATURE_MATMUL_INT8)
constexpr int32_t kPixelShift = 128;
#else
constexpr int32_t kPixelShift = 0;
#endif

// What turns a stored byte into the one that is multiplied, by exclusive or.
template <bool kSigned>
constexpr uint8_t kPixelFlip = kSigned != (kPixelShift != 0) ? 0x80 : 0;

}  // namespace
}  // namespace FXQ_ISA
}  // namespace fxquant
