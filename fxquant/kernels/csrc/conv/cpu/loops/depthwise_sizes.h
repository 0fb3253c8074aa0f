// Sizes of what the registers of a depthwise convolution hold. No torch.
#pragma once
#include <cstdint>

#include "conv/cpu/loops/clamp_at.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

constexpr int kQuarters = 4;
constexpr int64_t kLaneBytes = 16;

}  // namespace
}  // namespace FXQ_ISA
}  // namespace fxquant
