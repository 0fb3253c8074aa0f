#include "cpu/launch.h"
#include "pool/cpu/loops/resample2d.h"
#include "pool/resample.h"

namespace fxquant {
namespace {

// The loop reads where it is told to.
const int64_t* checked_starts(const char* name, const ResampleAxis& axis, int64_t size) {
  const auto* start = static_cast<const int64_t*>(axis.start.const_data_ptr());
  const int64_t count = axis.start.numel();
  if (count == 0) return start;
  const auto [least, most] = std::minmax_element(start, start + count);
  if (*least < 0 || *most > size - axis.taps) {
    fail("fxquant::resample2d: " + std::string(name) + "_start is out of range",
         std::to_string(*least) + " to " + std::to_string(*most), "0 to " + std::to_string(size - axis.taps));
  }
  return start;
}

Tensor resample2d_cpu(const Resample2dCall& c) {
  const Resample r = prepare_resample2d(c);
  const Images& im = r.images;
  const ResampleArgs args{im.x.const_data_ptr(),
                          static_cast<uint8_t*>(im.y.mutable_data_ptr()),
                          im.x.scalar_type() == ScalarType::Char,
                          im.channels,
                          im.rows.size,
                          im.rows.outputs,
                          im.columns.size,
                          im.columns.outputs,
                          checked_starts("row", r.rows, im.rows.size),
                          static_cast<const float*>(r.rows.weight.const_data_ptr()),
                          r.rows.taps,
                          checked_starts("column", r.columns, im.columns.size),
                          static_cast<const float*>(r.columns.weight.const_data_ptr()),
                          r.columns.taps,
                          r.qparams.x_scale,
                          r.qparams.x_zero_point,
                          r.qparams.y};
  if (im.y.numel() == 0) return im.y;
  const int64_t work = im.channels * (im.columns.size * r.rows.taps + im.columns.outputs * r.columns.taps);
  launch(
      args, im.planes * im.rows.outputs, std::max<int64_t>(kGrain / work, 1),
      [](const ResampleArgs& a, int64_t begin, int64_t end, void* row) {
        FXQ_LOOP(resample2d_loop)(a, static_cast<float*>(row), begin, end);
      },
      im.columns.size * im.channels * static_cast<int64_t>(sizeof(float)));
  return im.y;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fxquant, CPU, m) { m.impl("resample2d", FXQ_KERNEL(resample2d_cpu)); }

}  // namespace fxquant
