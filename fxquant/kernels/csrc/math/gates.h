// The functions of gates of recurrent layers, in float32: fxquant/kernels/recurrent/gates.py, operation by operation.
#pragma once
#include "math/half.h"

namespace fxquant {

enum class RecurrentMode : int32_t { kLstm, kGru, kTanh, kRelu };

FXQ_HOST_DEVICE int64_t gates_of(RecurrentMode mode) {
  return mode == RecurrentMode::kLstm ? 4 : mode == RecurrentMode::kGru ? 3 : 1;
}

// e^x for x <= 0, by the series that exp_steps of softmax.h takes; below 2^-126 it is 2^-126.
FXQ_HOST_DEVICE float exp_below_zero(float x) {
  const float doublings = x * 1.4426950408889634f;
  const float power = doublings > -126.0f ? doublings : -126.0f;
  const float whole = round_even(power);
  const float part = power - whole;
  float y = 0.00015403530393381608f;
  y = y * part + 0.0013333558146428443f;
  y = y * part + 0.009618129107628477f;
  y = y * part + 0.05550410866482158f;
  y = y * part + 0.2402265069591007f;
  y = y * part + 0.6931471805599453f;
  y = y * part + 1.0f;
  const uint32_t exponent = static_cast<uint32_t>(static_cast<int32_t>(whole) + 127);
  return y * float_of_bits(exponent << 23);
}

// NaN stays, in these three.
FXQ_HOST_DEVICE float gate_sigmoid(float x) {
  const float magnitude = x < 0 ? -x : x;
  const float e = exp_below_zero(-magnitude);
  const float above = 1.0f / (1.0f + e);
  const float y = x < 0 ? e * above : above;
  return x == x ? y : x;
}

FXQ_HOST_DEVICE float gate_tanh(float x) {
  const float magnitude = x < 0 ? -x : x;
  const float e = exp_below_zero(-(magnitude + magnitude));
  const float y = (1.0f - e) / (1.0f + e);
  const float with_sign = x < 0 ? -y : y;
  return x == x ? with_sign : x;
}

FXQ_HOST_DEVICE float gate_relu(float x) { return x < 0 ? 0.0f : x; }

struct NextState {
  float hidden;  // not projected
  float cell;
};

FXQ_HOST_DEVICE NextState lstm_step(float take, float keep, float fresh, float give, float cell) {
  const float next = gate_sigmoid(keep) * cell + gate_sigmoid(take) * gate_tanh(fresh);
  return {gate_sigmoid(give) * gate_tanh(next), next};
}

// The products of the input and of the hidden state apart, since the reset gate lies between those of the new value.
FXQ_HOST_DEVICE float gru_step(float reset, float update, float x_new, float h_new, float hidden) {
  const float fresh = gate_tanh(x_new + gate_sigmoid(reset) * h_new);
  return fresh + gate_sigmoid(update) * (hidden - fresh);
}

}  // namespace fxquant
