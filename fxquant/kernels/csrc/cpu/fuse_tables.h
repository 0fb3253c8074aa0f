// Fusion of lookup tables into the steps before them.
#pragma once
#include <algorithm>
#include <utility>
#include <vector>

#include "cpu/recorder.h"

namespace fxquant {

// Fuses a step that does nothing but look bytes up into the step that wrote them, if no other step reads them. The bytes are
// still in the first cache then.
inline void fuse_tables(std::vector<Step>& steps, std::vector<PointerSlot>& slots) {
  const auto slot_at = [&](int64_t at) {
    return std::find_if(slots.begin(), slots.end(), [at](const PointerSlot& slot) { return slot.at == at; });
  };
  std::vector<Step> left;
  for (const Step& step : steps) {
    const FusibleLookup& table = step.lookup;
    const FusibleLookup& before = left.empty() ? step.lookup : left.back().lookup;
    const auto bytes = before.bytes < 0 || before.x >= 0 ? slots.end() : slot_at(before.bytes);
    if (table.x < 0 || left.empty() || bytes == slots.end() || table.count != before.count) {
      left.push_back(step);
      continue;
    }
    // The bytes must be a temporary tensor that these two steps alone use, and the step before must have no table yet.
    const auto read = slot_at(table.x);
    const auto touches = [&](const PointerSlot& slot) { return slot.region == bytes->region; };
    if (bytes->region->role != Role::kTemporary || read->region != bytes->region || read->offset != bytes->offset ||
        std::count_if(slots.begin(), slots.end(), touches) != 2 || slot_at(before.table) != slots.end()) {
      left.push_back(step);
      continue;
    }
    // The step before gets the pointers to the table and to the result. Those of the lookup go.
    const auto entries = slot_at(table.table);
    const auto written = slot_at(table.bytes);
    const PointerSlot looked_up{before.table, entries->region, entries->offset};
    bytes->region = written->region;
    bytes->offset = written->offset;
    slots.insert(bytes + 1, looked_up);
    slots.erase(std::remove_if(slots.begin(), slots.end(),
                               [&](const PointerSlot& slot) {
                                 return slot.at == table.x || slot.at == table.table || slot.at == table.bytes;
                               }),
                slots.end());
  }
  steps = std::move(left);
}

}  // namespace fxquant
