#pragma once
#include "cpu/isa.h"
#include "math/gates.h"

namespace fxquant {

// The gates of one step.
struct GatesArgs {
  RecurrentMode mode;
  int64_t size;
  const float* of_input;   // [rows, gates * size], as the next one
  const float* of_hidden;
  float* cell;             // [rows, size]
  float* to;               // [rows, size], the next hidden states; a GRU reads those before the step there
};

constexpr int64_t kGateValues = 256;  // hidden values of one row that are a task

// The qparams of a step, in the matrix that it multiplies by.
struct StepScalesArgs {
  const float* weight_scale;
  const int32_t* correction;
  float* scale;
  int32_t* step_correction;
  float x_scale;
  int32_t zero_point;  // of the states as uint8
};

}  // namespace fxquant

FXQ_DECLARE_LOOP(gates_loop, (const GatesArgs& args, int64_t begin, int64_t end))
FXQ_DECLARE_LOOP(step_scales_loop, (const StepScalesArgs& args, int64_t count))
