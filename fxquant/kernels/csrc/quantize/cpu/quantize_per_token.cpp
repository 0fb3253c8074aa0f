#include "quantize/quantize_per_token.h"

#include <algorithm>
#include <tuple>

#include "cpu/launch.h"
#include "quantize/cpu/loops/quantize_per_token.h"

namespace fxquant {
namespace {

std::tuple<Tensor, Tensor, Tensor> quantize_per_token_cpu(const QuantizePerTokenCall& call) {
  const QuantizePerToken c(call);
  const QuantizePerTokenArgs args{c.type,
                                  call.dtype == ScalarType::Char,
                                  c.x.const_data_ptr(),
                                  c.q.mutable_data_ptr(),
                                  c.scale.mutable_data_ptr<float>(),
                                  c.zero_point.mutable_data_ptr<int32_t>(),
                                  c.columns,
                                  c.choice};
  launch(args, c.rows, std::max<int64_t>(kGrain / std::max<int64_t>(c.columns, 1), 1),
         [](const QuantizePerTokenArgs& a, int64_t begin, int64_t end, void*) {
           FXQ_LOOP(quantize_per_token_loop)(a, begin, end);
         });
  return {c.q, c.scale, c.zero_point};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fxquant, CPU, m) { m.impl("quantize_per_token", FXQ_KERNEL(quantize_per_token_cpu)); }

}  // namespace fxquant
