// The steps of a recurrent layer: a few kernels for each, which wait for nothing but each other. The qparams of the
// hidden states stay on the device.
#include "recurrent/recurrent_steps.h"

#include "conv/cuda/conv.h"
#include "fake_quantize/cuda/extremes.h"
#include "math/modulo.h"

namespace fxquant {
namespace {

// What is done once a range is known: by the one thread that has it.
struct ChooseStep {
  QParamsOptions choice;
  float* scale;
  int32_t* zero_point;

  FXQ_MEMBER void operator()(int64_t, const Extremes& extremes) const {
    const ChosenQParams chosen = choose_qparams(extremes.range(), choice);
    *scale = chosen.scale;
    *zero_point = chosen.zero_point;
  }
};

struct KnownStep {
  ChosenQParams known;
  float* scale;
  int32_t* zero_point;

  FXQ_MEMBER void operator()(int64_t) const {
    *scale = known.scale;
    *zero_point = known.zero_point;
  }
};

struct QuantizeStates {
  const float* x;
  uint8_t* q;
  const float* scale;
  const int32_t* zero_point;
  float low;
  float high;

  FXQ_MEMBER void operator()(int64_t i) const {
    const Affine<float> a{*scale, 1.0f / *scale, static_cast<float>(*zero_point), low, high};
    q[i] = static_cast<uint8_t>(static_cast<int32_t>(saturate(round_to_quantized(x[i], a), a)));
  }
};

struct ScaleStep {
  const float* weight_scale;
  const int32_t* correction;
  const float* scale;
  const int32_t* zero_point;
  int32_t moved;
  float* step_scale;
  int32_t* step_correction;

  FXQ_MEMBER void operator()(int64_t i) const {
    step_scale[i] = weight_scale[i] * *scale;
    step_correction[i] = multiply_modulo(correction[i], *zero_point + moved);
  }
};

struct Gates {
  RecurrentMode mode;
  int64_t size;
  const float* of_input;
  const float* of_hidden;
  float* cell;
  float* to;

  FXQ_MEMBER void operator()(int64_t i) const {
    const int64_t first = i / size * gates_of(mode) * size + i % size;
    const float* x = of_input + first;
    const float* h = of_hidden + first;
    if (mode == RecurrentMode::kLstm) {
      const NextState next = lstm_step(x[0] + h[0], x[size] + h[size], x[2 * size] + h[2 * size],
                                       x[3 * size] + h[3 * size], cell[i]);
      to[i] = next.hidden;
      cell[i] = next.cell;
    } else if (mode == RecurrentMode::kGru) {
      to[i] = gru_step(x[0] + h[0], x[size] + h[size], x[2 * size], h[2 * size], to[i]);
    } else {
      to[i] = mode == RecurrentMode::kTanh ? gate_tanh(x[0] + h[0]) : gate_relu(x[0] + h[0]);
    }
  }
};

struct KeepStates {
  const float* hidden;
  float* y;
  int64_t count;

  FXQ_MEMBER void operator()(int64_t i) const { y[i] = i < count ? hidden[i] : 0.0f; }
};

class OnCuda {
 public:
  OnCuda(const RecurrentSteps& steps, const RecurrentMemory& memory)
      : s_(steps),
        memory_(memory),
        scale_(empty_as(steps.of_input, {1}, false)),
        zero_point_(empty_as(steps.of_input, {1}, false, ScalarType::Int)) {}

  void clear(const Tensor& values) const {
    for_each(values, values.numel(), KeepStates{nullptr, values.mutable_data_ptr<float>(), 0});
  }

  void multiply(const Tensor& x, int64_t count, const StepMatrix& m, const Tensor& y) const {
    const int64_t numel = count * m.columns;
    float* scale = scale_.mutable_data_ptr<float>();
    int32_t* zero_point = zero_point_.mutable_data_ptr<int32_t>();
    const float* values = x.const_data_ptr<float>();
    if (s_.call.measured) {
      reduce_channels(x, MeasureExtremes<float>{values}, Layout{1, 1, numel}, ChooseStep{s_.choice, scale, zero_point});
    } else {
      for_each(x, 1, KnownStep{s_.known, scale, zero_point});
    }
    for_each(x, numel,
             QuantizeStates{values, static_cast<uint8_t*>(memory_.q.mutable_data_ptr()), scale, zero_point,
                            static_cast<float>(s_.call.quant_min), static_cast<float>(s_.call.quant_max)});
    for_each(x, m.rows,
             ScaleStep{m.scale.const_data_ptr<float>(), m.correction.const_data_ptr<int32_t>(), scale, zero_point,
                       s_.is_signed() ? 128 : 0, m.step_scale.mutable_data_ptr<float>(),
                       m.step_correction.mutable_data_ptr<int32_t>()});
    conv_cuda(step_product(memory_, m, count, first_rows(y, count), 0));  // nothing is padded
  }

  void advance(int64_t t, int64_t count, const Tensor& to) const {
    for_each(to, count * s_.size,
             Gates{s_.mode, s_.size, s_.of_input.const_data_ptr<float>() + t * s_.rows * s_.products,
                   memory_.products.const_data_ptr<float>(), memory_.cell.mutable_data_ptr<float>(),
                   to.mutable_data_ptr<float>()});
  }

  void keep(int64_t t, int64_t count) const {
    for_each(memory_.y, s_.rows * s_.outputs,
             KeepStates{memory_.hidden.const_data_ptr<float>(),
                        memory_.y.mutable_data_ptr<float>() + t * s_.rows * s_.outputs, count * s_.outputs});
  }

 private:
  // conv_cuda computes as many values as its result has.
  static Tensor first_rows(Tensor y, int64_t count) {
    return y.size(0) == count ? y : torch::stable::narrow(y, 0, 0, count);
  }

  const RecurrentSteps& s_;
  const RecurrentMemory& memory_;
  const Tensor scale_;
  const Tensor zero_point_;
};

RecurrentResults recurrent_steps_cuda(const RecurrentStepsCall& call) {
  const RecurrentSteps steps(call);
  const RecurrentMemory memory(steps);
  OnCuda device(steps, memory);
  return run_recurrent_steps(steps, memory, device);
}

}  // namespace

FXQ_CUDA_LIBRARY(m) { m.impl("recurrent_steps", FXQ_KERNEL(recurrent_steps_cuda)); }

}  // namespace fxquant
