// Fusion of lookup tables into the steps before them.
#pragma once
#include <algorithm>
#include <utility>
#include <vector>

#include "cpu/recorder.h"

namespace fxquant {

// Fuses a step that does nothing but look bytes up into the step that wrote them, if no other step reads them. The bytes are
// still in the L1 cache then.
inline void fuse_tables(std::vector<Step>& steps, std::vector<ArgumentPointer>& pointers) {
  const auto pointer_at = [&](int64_t at) {
    return std::find_if(pointers.begin(), pointers.end(), [at](const ArgumentPointer& pointer) { return pointer.at == at; });
  };
  std::vector<Step> left;
  for (const Step& step : steps) {
    const FusibleLookup& table = step.lookup;
    const FusibleLookup& before = left.empty() ? step.lookup : left.back().lookup;
    const auto bytes = before.bytes < 0 || before.x >= 0 ? pointers.end() : pointer_at(before.bytes);
    if (table.x < 0 || left.empty() || bytes == pointers.end() || table.count != before.count) {
      left.push_back(step);
      continue;
    }
    // The bytes must be a temporary tensor that these two steps alone use, and the step before must have no table yet.
    const auto read = pointer_at(table.x);
    const auto touches = [&](const ArgumentPointer& pointer) { return pointer.region == bytes->region; };
    if (bytes->region->role != Role::kTemporary || read->region != bytes->region || read->offset != bytes->offset ||
        std::count_if(pointers.begin(), pointers.end(), touches) != 2 || pointer_at(before.table) != pointers.end()) {
      left.push_back(step);
      continue;
    }
    // The step before gets the pointers to the table and to the result. Those of the lookup go.
    const auto entries = pointer_at(table.table);
    const auto written = pointer_at(table.bytes);
    const ArgumentPointer looked_up{before.table, entries->region, entries->offset};
    bytes->region = written->region;
    bytes->offset = written->offset;
    pointers.insert(bytes + 1, looked_up);
    pointers.erase(std::remove_if(pointers.begin(), pointers.end(),
                               [&](const ArgumentPointer& pointer) {
                                 return pointer.at == table.x || pointer.at == table.table || pointer.at == table.bytes;
                               }),
                pointers.end());
  }
  steps = std::move(left);
}

}  // namespace fxquant
