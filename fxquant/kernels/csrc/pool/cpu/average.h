// Runs what pool/average.h prepared.
#pragma once
#include "cpu/launch.h"
#include "pool/average.h"
#include "pool/cpu/loops/average.h"
#include "pool/cpu/windows.h"

namespace fxquant {

inline Tensor average_cpu(const Average& average) {
  const Images& im = average.images;
  const std::vector<Window> rows = windows_of(im.rows);
  const std::vector<Window> columns = windows_of(im.columns);
  const AverageArgs args{im.x.const_data_ptr(),
                         im.y.mutable_data_ptr(),
                         im.x.scalar_type() == ScalarType::Char,
                         average.elements(),
                         im.channels,
                         im.rows,
                         im.columns,
                         rows.data(),
                         columns.data(),
                         average.count_padding,
                         average.divisor,
                         average.qparams.x_scale,
                         average.qparams.x_zero_point,
                         average.qparams.y};
  const int64_t blocks = (im.channels + kChannelBlock - 1) / kChannelBlock;
  const int64_t tasks = im.y.numel() / std::max<int64_t>(im.channels, 1) * blocks;
  if (tasks == 0) return im.y;
  const int64_t work = 1 + im.x.numel() / tasks;  // elements per task, on average, where windows do not overlap
  launch(args, tasks, std::max<int64_t>(kGrain / work, 1),
         [](const AverageArgs& a, int64_t begin, int64_t end, void*) { FXQ_LOOP(average_loop)(a, begin, end); });
  return im.y;
}

}  // namespace fxquant
