#pragma once
#include "cpu/isa.h"
#include "linear/grouped_weight.h"

namespace fxquant {

struct WeightOnlyLinearArgs {
  GroupedWeight weight;
  const float* x;  // [rows, in_features]
  float* y;        // [rows, channels]
  int64_t rows;

  template <typename Visitor>
  void pointers(Visitor& visit) const {
    visit.tensor(weight.bytes);
    visit.tensor(weight.scale);
    visit.tensor(weight.zero_point);
    visit.tensor(weight.bias);
    visit.tensor(x);
    visit.tensor(y);
  }
};

// Rows whose sums are kept while the weights of a panel pass by, and dequantized values of each of its channels that are
// kept for them.
constexpr int64_t kRowBlock = 64;
constexpr int64_t kDequantized = 1024;

// Floats that a thread needs: values, and sums.
constexpr int64_t kWeightOnlyScratch = (kDequantized + kRowBlock) * kPanelChannels;

}  // namespace fxquant

// The panels begin <= i < end.
FXQ_DECLARE_LOOP(weight_only_linear_loop, (const WeightOnlyLinearArgs& args, int64_t begin, int64_t end, float* scratch))
