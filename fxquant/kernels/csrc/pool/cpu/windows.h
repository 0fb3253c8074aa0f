// The windows of an axis, worked out once for a call.
#pragma once
#include <vector>

#include "math/window.h"

namespace fxquant {

inline std::vector<Window> windows_of(const PoolAxis& axis) {
  std::vector<Window> windows(axis.outputs);
  for (int64_t i = 0; i < axis.outputs; ++i) windows[i] = window_of(axis, i);
  return windows;
}

}  // namespace fxquant
