#include "cpu/launch.h"
#include "pool/cpu/loops/max_pool2d.h"
#include "pool/cpu/windows.h"
#include "pool/pool.h"

namespace fxquant {
namespace {

Tensor max_pool2d_cpu(const MaxPool2dCall& c) {
  const Images im = prepare_max_pool2d(c);
  const std::vector<Window> rows = windows_of(im.rows);
  const std::vector<Window> columns = windows_of(im.columns);
  const MaxPoolArgs args{im.x.const_data_ptr(), im.y.mutable_data_ptr(), im.x.scalar_type() == ScalarType::Char,
                         im.channels,           im.rows,                 im.columns,
                         rows.data(),           columns.data(),          im.planes};
  const int64_t row = im.columns.size * im.channels;
  // Of a row of the output: rows of the input first, then columns of what is left. Bytes are compared 64 at a time.
  const int64_t work = row * im.rows.kernel + im.columns.outputs * im.channels * im.columns.kernel;
  launch(
      args, args.tasks(), std::max<int64_t>(4 * kGrain / work, 1),
      [](const MaxPoolArgs& a, int64_t begin, int64_t end, void* scratch) {
        FXQ_LOOP(max_pool2d_loop)(a, begin, end, static_cast<uint8_t*>(scratch));
      },
      row);
  return im.y;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fxquant, CPU, m) { m.impl("max_pool2d", FXQ_KERNEL(max_pool2d_cpu)); }

}  // namespace fxquant
