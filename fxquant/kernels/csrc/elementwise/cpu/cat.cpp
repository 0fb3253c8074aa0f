#include "elementwise/cat.h"

#include "cpu/launch.h"
#include "elementwise/cpu/loops/cat.h"

namespace fxquant {
namespace {

Tensor cat_cpu(const CatCall& c) {
  const Cat cat = prepare_cat(c);
  std::vector<CatPart> parts;
  int64_t row = 0;
  for (size_t i = 0; i < cat.parts.size(); ++i) {
    const int64_t length = cat.length(i);
    if (length == 0) continue;
    parts.push_back({cat.parts[i].const_data_ptr(), row, length, cat.scales[i], cat.zero_points[i], cat.copied[i]});
    row += length;
  }
  const int64_t count = static_cast<int64_t>(parts.size());
  const CatArgs args{parts.data(), count, row, cat.y.mutable_data_ptr(), cat.y.scalar_type() == ScalarType::Char,
                     cat.y_qparams};
  launch(args, cat.y.numel(), kGrain,
         [](const CatArgs& a, int64_t begin, int64_t end, void*) { FXQ_LOOP(cat_loop)(a, begin, end); });
  return cat.y;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fxquant, CPU, m) { m.impl("cat", FXQ_KERNEL(cat_cpu)); }

}  // namespace fxquant
