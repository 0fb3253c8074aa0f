// The arguments of recurrent_steps, checked, its results, and the order of its steps on any device.
#pragma once
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "common/call.h"
#include "common/memory_format.h"
#include "common/numbers.h"
#include "common/quantized_checks.h"
#include "conv/conv.h"
#include "math/gates.h"
#include "math/qparams.h"

namespace fxquant {

struct RecurrentStepsCall {
  Tensor of_input;
  Tensor hidden;
  Tensor cell;
  std::vector<int64_t> counts;
  bool reverse;
  int64_t mode;
  Tensor weight;
  Tensor correction;
  Tensor weight_scale;
  Tensor bias;
  std::optional<Tensor> projection;
  std::optional<Tensor> projection_correction;
  std::optional<Tensor> projection_scale;
  bool measured;
  double scale;
  int64_t zero_point;
  double eps;
  int64_t quant_min;
  int64_t quant_max;
  std::optional<int64_t> middle;
  ScalarType dtype;
};

// A matrix, and what its product needs in each step: these three change with the qparams of the step.
struct StepMatrix {
  int64_t rows;
  int64_t columns;
  Tensor weight;      // packed
  Tensor correction;  // of zero point 1
  Tensor scale;       // of the weight
  Tensor bias;
  Tensor step_correction;
  Tensor step_scale;
};

// A call, checked.
class RecurrentSteps {
 public:
  static constexpr const char* kOp = "fxquant::recurrent_steps";

  explicit RecurrentSteps(const RecurrentStepsCall& c) : call(c) {
    check_float("of_input", c.of_input, 3);
    check_float("hidden", c.hidden, 2);
    check_float("cell", c.cell, 2);
    if (c.mode < 0 || c.mode > 3) fail(std::string(kOp) + ": mode is out of range", c.mode, "0 to 3");
    mode = static_cast<RecurrentMode>(c.mode);
    steps = c.of_input.size(0);
    rows = c.of_input.size(1);
    products = c.of_input.size(2);
    outputs = c.hidden.size(1);
    size = products / gates_of(mode);
    if (products % gates_of(mode) != 0 || (!c.projection.has_value() && outputs != size)) {
      fail(std::string(kOp) + ": of_input has the wrong shape", shape_of(c.of_input), std::to_string(outputs));
    }
    if (c.hidden.size(0) != rows) {
      fail(std::string(kOp) + ": hidden has the wrong shape", shape_of(c.hidden), list_of(std::vector<int64_t>{rows}));
    }
    const std::vector<int64_t> cell{rows, mode == RecurrentMode::kLstm ? size : 0};
    if (sizes_of(c.cell) != cell) {
      fail(std::string(kOp) + ": cell has the wrong shape", shape_of(c.cell), list_of(cell));
    }
    check_counts();
    of_hidden = matrix("", c.weight, c.correction, c.weight_scale, products, outputs);
    check_vector("bias", c.bias, ScalarType::Float, products);
    of_hidden.bias = row_major(c.bias);
    check_projection();
    check_states();
    of_input = row_major(c.of_input);
  }

  bool has_projection() const { return call.projection.has_value(); }
  bool is_signed() const { return call.dtype == ScalarType::Char; }
  int64_t count(int64_t t) const { return call.counts.empty() ? rows : call.counts[t]; }

  const RecurrentStepsCall& call;
  RecurrentMode mode;
  int64_t steps;
  int64_t rows;
  int64_t products;
  int64_t outputs;
  int64_t size;
  Tensor of_input;
  StepMatrix of_hidden;
  StepMatrix projection;
  QParamsOptions choice;
  ChosenQParams known;  // without `measured`

 private:
  void check_float(const char* argument, const Tensor& values, int64_t dims) const {
    if (values.scalar_type() != ScalarType::Float) fail_dtype(kOp, argument, values.scalar_type(), "float32");
    if (values.dim() != dims) {
      fail(std::string(kOp) + ": " + argument + " has the wrong shape", shape_of(values),
           std::to_string(dims) + " dimensions");
    }
    check_same_device(kOp, argument, values, call.of_input);
  }

  void check_vector(const std::string& argument, const Tensor& values, ScalarType dtype, int64_t count) const {
    if (values.scalar_type() != dtype) {
      fail_dtype(kOp, argument.c_str(), values.scalar_type(), name_of(dtype).c_str() + 6);
    }
    check_count(kOp, argument.c_str(), values, count);
    check_same_device(kOp, argument, values, call.of_input);
  }

  void check_counts() const {
    const std::vector<int64_t>& counts = call.counts;
    if (counts.empty()) return;
    bool right = static_cast<int64_t>(counts.size()) == steps;
    int64_t before = rows;
    for (const int64_t count : counts) {
      right = right && count >= 0 && count <= before;
      before = count;
    }
    if (!right) {
      fail(std::string(kOp) + ": counts is out of range", list_of(counts),
           std::to_string(steps) + " numbers, descending from " + std::to_string(rows));
    }
  }

  StepMatrix matrix(const std::string& prefix, const Tensor& weight, const Tensor& correction, const Tensor& scale,
                    int64_t matrix_rows, int64_t columns) const {
    const std::string name = prefix.empty() ? "weight" : "projection";
    if (weight.scalar_type() != ScalarType::Char) fail_dtype(kOp, name.c_str(), weight.scalar_type(), "int8");
    const ConvShape shape = linear_shape(1, columns, matrix_rows);
    const std::vector<int64_t> packed{shape.group_bundles() * shape.panels() * shape.k_blocks() * shape.k_groups(),
                                      kPanel, kKGroup};
    if (sizes_of(weight) != packed) {
      fail(std::string(kOp) + ": " + name + " has the wrong shape", shape_of(weight),
           list_of(packed) + ", as pack_weight gives it");
    }
    check_same_device(kOp, name, weight, call.of_input);
    check_vector(prefix + "correction", correction, ScalarType::Int, matrix_rows);
    check_vector(prefix.empty() ? "weight_scale" : prefix + "scale", scale, ScalarType::Float, matrix_rows);
    return {matrix_rows,
            columns,
            row_major(weight),
            row_major(correction),
            row_major(scale),
            row_major(scale),
            empty_as(correction, {matrix_rows}, false),
            empty_as(scale, {matrix_rows}, false)};
  }

  void check_projection() {
    const bool given[] = {call.projection.has_value(), call.projection_correction.has_value(),
                          call.projection_scale.has_value()};
    projection = of_hidden;
    if (!given[0] && !given[1] && !given[2]) return;
    if (!given[0] || !given[1] || !given[2] || mode != RecurrentMode::kLstm) {
      fail(std::string(kOp) + ": projection is not whole", "a part of it", "all three, of an LSTM");
    }
    projection = matrix("projection_", *call.projection, *call.projection_correction, *call.projection_scale, outputs,
                        size);
    projection.bias = empty_as(projection.scale, {outputs}, false);
  }

  void check_states() {
    if (call.dtype != ScalarType::Byte && call.dtype != ScalarType::Char) {
      fail_dtype(kOp, "dtype", call.dtype, "uint8 or int8");
    }
    const int64_t low = smallest_of(call.dtype);
    check_limits(kOp, call.quant_min, call.quant_max, low, low + 255);
    if (call.middle.has_value()) check_zero_point(kOp, *call.middle, call.quant_min, call.quant_max);
    if (!(std::abs(call.eps) <= std::numeric_limits<float>::max())) {
      fail(std::string(kOp) + ": eps is out of range", call.eps, "a finite float32");
    }
    known = {1.0f, 0};
    if (!call.measured) {
      known = {check_qparams(kOp, "", call.scale, call.zero_point, call.dtype), static_cast<int32_t>(call.zero_point)};
    }
    choice = {static_cast<float>(call.eps),          1.0f,
              static_cast<int32_t>(call.quant_min),  static_cast<int32_t>(call.quant_max),
              static_cast<int32_t>(call.middle.value_or(0)), call.middle.has_value()};
  }
};

// The results of a call, and what its steps keep in memory.
struct RecurrentMemory {
  Tensor y;
  Tensor hidden;    // [rows, outputs], changed by each step
  Tensor cell;
  Tensor products;  // float32 [rows, products], of the hidden states
  Tensor fresh;     // float32 [rows, size]: hidden states that are not projected yet
  Tensor q;         // [rows, outputs or size]: what is multiplied

  explicit RecurrentMemory(const RecurrentSteps& s)
      : y(empty_as(s.of_input, {s.steps, s.rows, s.outputs}, false)),
        hidden(copied(s.call.hidden)),
        cell(copied(s.call.cell)),
        products(empty_as(s.of_input, {s.rows, s.products}, false)),
        fresh(empty_as(s.of_input, {s.has_projection() ? s.rows : 0, s.size}, false)),
        q(empty_as(s.of_input, {s.rows, s.outputs > s.size ? s.outputs : s.size}, false, s.call.dtype)) {}

 private:
  static Tensor copied(const Tensor& x) {
    const Tensor y = empty_as(x, sizes_of(x), false);
    copy_elements(y, x);
    return y;
  }
};

// A product of quantized values by a matrix, as the convolution that it is. The qparams are in the matrix.
inline CheckedConv step_product(const RecurrentMemory& memory, const StepMatrix& m, int64_t count,
                         const Tensor& y, int32_t zero_point) {
  return {linear_shape(count, m.columns, m.rows), memory.q, std::nullopt, y, m.weight, m.step_correction, m.step_scale,
          m.bias, zero_point, 1.0f, 0, OutputQParams{1.0f, 0.0f, 0.0f, 0}};
}

using RecurrentResults = std::tuple<Tensor, Tensor, Tensor>;

// Runs all steps. Device has
//   clear(values): writes zeros, the bias of the projection;
//   multiply(x, count, matrix, y): quantizes x [count, matrix.columns], multiplies, and writes y [count, matrix.rows];
//   advance(t, count, to): the gates of step t, which write the hidden states to `to`, and the cell states in place;
//   keep(t, count): the first `count` hidden states become rows of the result, the others are 0 there.
template <typename Device>
RecurrentResults run_recurrent_steps(const RecurrentSteps& s, const RecurrentMemory& memory, Device& device) {
  if (s.has_projection()) device.clear(s.projection.bias);
  for (int64_t i = 0; i < s.steps && s.rows > 0; ++i) {
    const int64_t t = s.call.reverse ? s.steps - 1 - i : i;
    const int64_t count = s.count(t);
    if (count > 0 && s.products > 0) {
      device.multiply(memory.hidden, count, s.of_hidden, memory.products);
      device.advance(t, count, s.has_projection() ? memory.fresh : memory.hidden);
      if (s.has_projection()) device.multiply(memory.fresh, count, s.projection, memory.hidden);
    }
    device.keep(t, count);
  }
  return {memory.y, memory.hidden, memory.cell};
}

}  // namespace fxquant
