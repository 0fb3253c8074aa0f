#include "quantize/cpu/quantize_per_token.h"

#include <algorithm>
#include <tuple>

#include "cpu/launch.h"
#include "quantize/cpu/loops/quantize_per_token.h"

namespace fxquant {
namespace {

// One row that is long enough for several threads.
void quantize_long_row(const QuantizePerToken& c, const QuantizePerTokenArgs& row) {
  constexpr int64_t kMostParts = 64;
  const int64_t parts = std::min(kMostParts, c.columns / kGrain);
  const Tensor keys = empty_as(c.x, {2 * parts}, false, ScalarType::Int);
  const QuantizePartsArgs args{row, keys.mutable_data_ptr<int32_t>(), parts};
  launch(args, parts, 1, [](const QuantizePartsArgs& a, int64_t begin, int64_t end, void*) {
    FXQ_LOOP(measure_parts_loop)(a, begin, end);
  });
  launch(args, parts, 1, [](const QuantizePartsArgs& a, int64_t begin, int64_t end, void*) {
    FXQ_LOOP(quantize_parts_loop)(a, begin, end);
  });
}

std::tuple<Tensor, Tensor, Tensor> quantize_per_token_cpu(const QuantizePerTokenCall& call) {
  const QuantizePerToken c(call);
  quantize_rows_cpu(c);
  return {c.q, c.scale, c.zero_point};
}

}  // namespace

void quantize_rows_cpu(const QuantizePerToken& c) {
  const QuantizePerTokenArgs args{c.type,
                                  c.q.scalar_type() == ScalarType::Char,
                                  c.x.const_data_ptr(),
                                  c.q.mutable_data_ptr(),
                                  c.scale.mutable_data_ptr<float>(),
                                  c.zero_point.mutable_data_ptr<int32_t>(),
                                  c.columns,
                                  c.choice};
  if (c.rows == 1 && c.columns >= 2 * kGrain) return quantize_long_row(c, args);
  launch(args, c.rows, std::max<int64_t>(kGrain / std::max<int64_t>(c.columns, 1), 1),
         [](const QuantizePerTokenArgs& a, int64_t begin, int64_t end, void*) {
           FXQ_LOOP(quantize_per_token_loop)(a, begin, end);
         });
}

STABLE_TORCH_LIBRARY_IMPL(fxquant, CPU, m) { m.impl("quantize_per_token", FXQ_KERNEL(quantize_per_token_cpu)); }

}  // namespace fxquant
