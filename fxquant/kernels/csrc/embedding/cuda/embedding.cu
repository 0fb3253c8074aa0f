#include <torch/csrc/stable/library.h>

#include "cuda/launch.h"
#include "embedding/cuda/lookup.h"
#include "embedding/lookup_checks.h"

namespace fxquant {
namespace {

constexpr const char* kOp = "fxquant::embedding";

struct LookUpRow {
  DeviceTable table;
  const int64_t* indices;
  float* y;

  FXQ_MEMBER void operator()(int64_t i) const {
    const int64_t columns = table.table.columns;
    y[i] = table.at(indices[i / columns], i % columns);
  }
};

Tensor embedding_cuda(const Tensor& weight, const Tensor& scale, const Tensor& zero_point, const Tensor& indices_,
                      int64_t bits, int64_t columns) {
  const CheckedTable checked(kOp, weight, scale, zero_point, bits, columns);
  const Tensor indices = checked_indices(kOp, "indices", indices_, checked.weight);
  std::vector<int64_t> sizes(indices.sizes().begin(), indices.sizes().end());
  sizes.push_back(columns);
  const Tensor y = torch::stable::new_empty(checked.scale, sizes);
  for_each(y, y.numel(),
           LookUpRow{{checked.table, checked.rows()}, indices.const_data_ptr<int64_t>(), y.mutable_data_ptr<float>()});
  return y;
}

}  // namespace

FXQ_CUDA_LIBRARY(m) { m.impl("embedding", TORCH_BOX(&embedding_cuda)); }

}  // namespace fxquant
