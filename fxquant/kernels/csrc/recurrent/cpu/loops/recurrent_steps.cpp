// The gates of a step. Products lie as [rows][gates][size], states as [rows][size]; a task is a stretch of one row:
//
//   for row, stretch of kGateValues values:   # parallel
//       for value: read its products, apply the gates, write the next states
#include "recurrent/cpu/loops/recurrent_steps.h"

#include "cpu/loops/blocks.h"
#include "math/modulo.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

FXQ_ONE_LOOP void lstm(const float* FXQ_RESTRICT x, const float* FXQ_RESTRICT h, float* FXQ_RESTRICT cell,
                       float* FXQ_RESTRICT to, int64_t size, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const NextState next = lstm_step(x[i] + h[i], x[size + i] + h[size + i], x[2 * size + i] + h[2 * size + i],
                                     x[3 * size + i] + h[3 * size + i], cell[i]);
    to[i] = next.hidden;
    cell[i] = next.cell;
  }
}

// Each hidden state is read before it is written.
FXQ_ONE_LOOP void gru(const float* FXQ_RESTRICT x, const float* FXQ_RESTRICT h, float* FXQ_RESTRICT hidden,
                      int64_t size, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    hidden[i] = gru_step(x[i] + h[i], x[size + i] + h[size + i], x[2 * size + i], h[2 * size + i], hidden[i]);
  }
}

FXQ_ONE_LOOP void of_tanh(const float* FXQ_RESTRICT x, const float* FXQ_RESTRICT h, float* FXQ_RESTRICT to,
                          int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = gate_tanh(x[i] + h[i]);
}

FXQ_ONE_LOOP void of_relu(const float* FXQ_RESTRICT x, const float* FXQ_RESTRICT h, float* FXQ_RESTRICT to,
                          int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = gate_relu(x[i] + h[i]);
}

FXQ_ONE_LOOP void scales(const StepScalesArgs a, const float* FXQ_RESTRICT weight_scale,
                         const int32_t* FXQ_RESTRICT correction, float* FXQ_RESTRICT scale,
                         int32_t* FXQ_RESTRICT step_correction, int64_t count) {
  for (int64_t i = 0; i < count; ++i) scale[i] = weight_scale[i] * a.x_scale;
  for (int64_t i = 0; i < count; ++i) step_correction[i] = multiply_modulo(correction[i], a.zero_point);
}

}  // namespace

void gates_loop(const GatesArgs& a, int64_t begin, int64_t end) {
  const int64_t stretches = (a.size + kGateValues - 1) / kGateValues;
  const int64_t products = gates_of(a.mode) * a.size;
  for (int64_t task = begin; task < end; ++task) {
    const int64_t row = task / stretches, first = task % stretches * kGateValues;
    const int64_t count = a.size - first < kGateValues ? a.size - first : kGateValues;
    const float* x = a.of_input + row * products + first;
    const float* h = a.of_hidden + row * products + first;
    float* to = a.to + row * a.size + first;
    switch (a.mode) {
      case RecurrentMode::kLstm: lstm(x, h, a.cell + row * a.size + first, to, a.size, count); break;
      case RecurrentMode::kGru: gru(x, h, to, a.size, count); break;
      case RecurrentMode::kTanh: of_tanh(x, h, to, count); break;
      case RecurrentMode::kRelu: of_relu(x, h, to, count); break;
    }
  }
}

void step_scales_loop(const StepScalesArgs& a, int64_t count) {
  scales(a, a.weight_scale, a.correction, a.scale, a.step_correction, count);
}

}  // namespace FXQ_ISA
}  // namespace fxquant
