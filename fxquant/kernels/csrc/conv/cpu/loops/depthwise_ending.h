// Sizes of what the registers of a depthwise convolution hold, and how its tiles end. No torch.
#pragma once
#include <cstdint>

namespace fxquant {
namespace FXQ_ISA {
namespace {

constexpr int kQuarters = 4;
constexpr int64_t kLaneBytes = 16;

// How a tile ends: with bytes, or with floats. Values are clamped before they become bytes. Where none, divided by the scale,
// passes int32, the bytes are clamped instead. Where the result has all values of uint8, they saturate anyway.
enum Ending { kClampValues, kClampBytes, kSaturate, kAddResidual, kFloats };

}  // namespace
}  // namespace FXQ_ISA
}  // namespace fxquant
