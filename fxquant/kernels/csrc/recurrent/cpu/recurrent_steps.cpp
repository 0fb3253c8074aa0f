#include "recurrent/recurrent_steps.h"

#include <algorithm>
#include <cstring>

#include "conv/cpu/conv.h"
#include "fake_quantize/cpu/loops/moving_average_qparams.h"
#include "quantize/cpu/loops/quantize.h"
#include "recurrent/cpu/loops/recurrent_steps.h"

namespace fxquant {
namespace {

class OnCpu {
 public:
  OnCpu(const RecurrentSteps& steps, const RecurrentMemory& memory) : s_(steps), memory_(memory) {}

  void clear(const Tensor& values) const {
    std::fill_n(values.mutable_data_ptr<float>(), values.numel(), 0.0f);
  }

  void multiply(const Tensor& x, int64_t count, const StepMatrix& m, const Tensor& y) const {
    const int64_t numel = count * m.columns;
    const float* values = x.const_data_ptr<float>();
    const ChosenQParams chosen = s_.call.measured ? measure(values, numel) : s_.known;
    quantize(values, numel, chosen);
    const StepScalesArgs scales{m.scale.const_data_ptr<float>(),
                                m.correction.const_data_ptr<int32_t>(),
                                m.step_scale.mutable_data_ptr<float>(),
                                m.step_correction.mutable_data_ptr<int32_t>(),
                                chosen.scale,
                                chosen.zero_point + (s_.is_signed() ? 128 : 0)};
    FXQ_LOOP(step_scales_loop)(scales, m.rows);
    conv_cpu(step_product(memory_, m, count, y, chosen.zero_point));
  }

  void advance(int64_t t, int64_t count, const Tensor& to) const {
    const GatesArgs args{s_.mode,
                         s_.size,
                         s_.of_input.const_data_ptr<float>() + t * s_.rows * s_.products,
                         memory_.products.const_data_ptr<float>(),
                         memory_.cell.mutable_data_ptr<float>(),
                         to.mutable_data_ptr<float>()};
    constexpr int64_t kTasks = 32;  // of kGateValues values: some microseconds
    const int64_t stretches = (s_.size + kGateValues - 1) / kGateValues;
    const auto loop = FXQ_LOOP(gates_loop);
    torch::stable::parallel_for(0, count * stretches, kTasks,
                                [&](int64_t begin, int64_t end) { loop(args, begin, end); });
  }

  void keep(int64_t t, int64_t count) const {
    float* y = memory_.y.mutable_data_ptr<float>() + t * s_.rows * s_.outputs;
    if (count * s_.outputs > 0) {
      std::memcpy(y, memory_.hidden.const_data_ptr<float>(), count * s_.outputs * sizeof(float));
    }
    std::fill(y + count * s_.outputs, y + s_.rows * s_.outputs, 0.0f);
  }

 private:
  ChosenQParams measure(const float* x, int64_t count) const {
    const ExtremesArgs args{Float::kFloat, x, {1, 1, count}};
    int32_t low = kNoLow, high = kNoHigh;
    ChannelExtremes found{&low, &high, 0};
    FXQ_LOOP(extremes_loop)(args, found, false, 0, count);
    const int32_t lowest = key_of(float_of_bits((kInfinity - 1) | 0x80000000u));
    if (low < lowest || high > key_of(float_of_bits(kInfinity - 1))) {
      low = kNoLow;
      high = kNoHigh;
      FXQ_LOOP(extremes_loop)(args, found, true, 0, count);
    }
    const bool seen = low <= high;
    return choose_qparams({seen ? of_key(low) : float_of_bits(kInfinity),
                           seen ? of_key(high) : float_of_bits(kInfinity | 0x80000000u)},
                          s_.choice);
  }

  void quantize(const float* x, int64_t count, const ChosenQParams& chosen) const {
    const float inverse = 1.0f / chosen.scale, zero_point = static_cast<float>(chosen.zero_point);
    const QuantizeArgs args{Float::kFloat,
                            s_.is_signed() ? Integer::kInt8 : Integer::kUint8,
                            x,
                            memory_.q.mutable_data_ptr(),
                            {1, 1, count},
                            {&chosen.scale, &inverse, &zero_point, static_cast<float>(s_.call.quant_min),
                             static_cast<float>(s_.call.quant_max)},
                            {}};
    const auto loop = FXQ_LOOP(quantize_loop);
    torch::stable::parallel_for(0, count, kGrain, [&](int64_t begin, int64_t end) { loop(args, begin, end); });
  }

  const RecurrentSteps& s_;
  const RecurrentMemory& memory_;
};

RecurrentResults recurrent_steps_cpu(const RecurrentStepsCall& call) {
  const RecurrentSteps steps(call);
  const RecurrentMemory memory(steps);
  OnCpu device(steps, memory);
  return run_recurrent_steps(steps, memory, device);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fxquant, CPU, m) { m.impl("recurrent_steps", FXQ_KERNEL(recurrent_steps_cpu)); }

}  // namespace fxquant
