// Rows, or a whole tensor as one row, each by its own range, on the CPU: what quantize_per_token and dynamic_linear launch.
#pragma once
#include "quantize/quantize_per_token.h"

namespace fxquant {

void quantize_rows_cpu(const QuantizePerToken& c);

}  // namespace fxquant
