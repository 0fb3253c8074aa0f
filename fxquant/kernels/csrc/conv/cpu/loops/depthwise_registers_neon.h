// The registers of depthwise_registers.h with the dot products of ARM: one lane. No torch.
#pragma once
#if defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>

#include <cstdint>

#include "conv/conv_shape.h"
#include "conv/cpu/loops/depthwise_sizes.h"
#include "cpu/loops/loop_pragmas.h"
#include "math/requantize.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

constexpr int kLanes = 1;
constexpr int kSteps = 6;  // of 32 registers, accumulators take 24
using ByteLanes = uint8x16_t;
using SumLanes = int32x4_t;
using FloatLanes = float32x4_t;

FXQ_INLINE ByteLanes load_bytes(const void* from) { return vld1q_u8(static_cast<const uint8_t*>(from)); }
FXQ_INLINE void store_bytes(void* to, ByteLanes x) { vst1q_u8(static_cast<uint8_t*>(to), x); }
FXQ_INLINE FloatLanes load_values(const float* from) { return vld1q_f32(from); }
FXQ_INLINE void store_values(float* to, FloatLanes x) { vst1q_f32(to, x); }

FXQ_INLINE ByteLanes gather_lanes(const uint8_t* const* from, int64_t at) { return load_bytes(from[0] + at); }
template <int kTogether>
FXQ_INLINE ByteLanes load_lanes(const uint8_t* from, int64_t) {
  return load_bytes(from);
}

FXQ_INLINE ByteLanes flip_bytes(ByteLanes x, uint8_t flip) { return veorq_u8(x, vdupq_n_u8(flip)); }
FXQ_INLINE void interleave_rows(const ByteLanes* rows, ByteLanes* quarters) {
  const uint8x16x2_t first = vzipq_u8(rows[0], rows[1]), second = vzipq_u8(rows[2], rows[3]);
  FXQ_UNROLL
  for (int i = 0; i < 2; ++i) {
    const uint16x8x2_t both = vzipq_u16(vreinterpretq_u16_u8(first.val[i]), vreinterpretq_u16_u8(second.val[i]));
    quarters[2 * i] = vreinterpretq_u8_u16(both.val[0]);
    quarters[2 * i + 1] = vreinterpretq_u8_u16(both.val[1]);
  }
}
// Moves the bytes of K groups up by `count`, and those of the K groups before into their place. A shift by 32 bits gives 0.
FXQ_INLINE ByteLanes shift_k_groups(ByteLanes x, ByteLanes before, int count) {
  const uint32x4_t here = vshlq_u32(vreinterpretq_u32_u8(x), vdupq_n_s32(8 * count));
  const uint32x4_t there = vshlq_u32(vreinterpretq_u32_u8(before), vdupq_n_s32(8 * count - 32));
  return vreinterpretq_u8_u32(vorrq_u32(here, there));
}

constexpr int kParts = 1;
FXQ_INLINE void store_quarter(uint8_t* to, int64_t, ByteLanes x) { store_bytes(to, x); }
FXQ_INLINE void store_weights(uint8_t* to, ByteLanes w) { store_bytes(to, w); }
FXQ_INLINE SumLanes add_products(SumLanes to, ByteLanes x, ByteLanes w) {
#if defined(__ARM_FEATURE_MATMUL_INT8)
  return vusdotq_s32(to, x, vreinterpretq_s8_u8(w));
#else
  return vdotq_s32(to, vreinterpretq_s8_u8(x), vreinterpretq_s8_u8(w));
#endif
}

FXQ_INLINE FloatLanes values_of(SumLanes x) { return vcvtq_f32_s32(x); }
FXQ_INLINE FloatLanes multiply(FloatLanes a, FloatLanes b) { return vmulq_f32(a, b); }
FXQ_INLINE FloatLanes add(FloatLanes a, FloatLanes b) { return vaddq_f32(a, b); }
FXQ_INLINE FloatLanes all_values(float x) { return vdupq_n_f32(x); }

FXQ_INLINE void widen(ByteLanes x, int32_t zero_point, FloatLanes* values) {
  const int32x4_t zero_points = vdupq_n_s32(zero_point);
  const uint16x8_t halves[2] = {vmovl_u8(vget_low_u8(x)), vmovl_high_u8(x)};
  FXQ_UNROLL
  for (int i = 0; i < 2; ++i) {
    const uint32x4_t low = vmovl_u16(vget_low_u16(halves[i])), high = vmovl_high_u16(halves[i]);
    values[2 * i] = vcvtq_f32_s32(vsubq_s32(vreinterpretq_s32_u32(low), zero_points));
    values[2 * i + 1] = vcvtq_f32_s32(vsubq_s32(vreinterpretq_s32_u32(high), zero_points));
  }
}

FXQ_INLINE void order_lanes(const FloatLanes* quarters, FloatLanes* lanes) {
  for (int k = 0; k < kQuarters; ++k) lanes[k] = quarters[k];
}

// Does what requantize() of math/requantize.h does: a comparison with NaN is false, which gives the lowest byte.
class Requantize {
 public:
  explicit Requantize(const OutputQParams& q)
      : inv_scale_(vdupq_n_f32(q.inv_scale)),
        low_(vdupq_n_f32(q.low)),
        high_(vdupq_n_f32(q.high)),
        zero_point_(vdupq_n_s32(q.zero_point)) {}

  template <ClampAt>
  FXQ_INLINE ByteLanes bytes(const FloatLanes* values) const {
    const int16x8_t first = vcombine_s16(vmovn_s32(integers(values[0])), vmovn_s32(integers(values[1])));
    const int16x8_t second = vcombine_s16(vmovn_s32(integers(values[2])), vmovn_s32(integers(values[3])));
    return vreinterpretq_u8_s8(vcombine_s8(vmovn_s16(first), vmovn_s16(second)));
  }

 private:
  const float32x4_t inv_scale_, low_, high_;
  const int32x4_t zero_point_;

  FXQ_INLINE int32x4_t integers(float32x4_t value) const {
    const float32x4_t steps = vmulq_f32(value, inv_scale_);
    const float32x4_t above = vbslq_f32(vcgtq_f32(steps, low_), steps, low_);
    const float32x4_t clamped = vbslq_f32(vcltq_f32(above, high_), above, high_);
    return vaddq_s32(vcvtnq_s32_f32(clamped), zero_point_);  // rounds half to even
  }
};

}  // namespace
}  // namespace FXQ_ISA
}  // namespace fxquant
#endif
