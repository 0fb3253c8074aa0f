// Tables that need no step of their own in a program.
#pragma once
#include <algorithm>
#include <utility>
#include <vector>

#include "recorder.h"

namespace fxquant {

// Lets steps look their bytes up themselves where the next step does nothing else, and nobody else reads them: what was
// written is still in the first cache then.
inline void fuse_tables(std::vector<Step>& steps, std::vector<Slot>& slots, const std::vector<Region>& regions) {
  const auto slot_at = [&](int64_t at) {
    return std::find_if(slots.begin(), slots.end(), [at](const Slot& slot) { return slot.at == at; });
  };
  std::vector<Step> left;
  for (const Step& step : steps) {
    const Lookup& table = step.lookup;
    const Lookup& before = left.empty() ? step.lookup : left.back().lookup;
    const auto bytes = before.bytes < 0 || before.x >= 0 ? slots.end() : slot_at(before.bytes);
    if (table.x < 0 || left.empty() || bytes == slots.end() || table.count != before.count) {
      left.push_back(step);
      continue;
    }
    const auto* memory = static_cast<const uint8_t*>(bytes->memory);
    const auto region = std::find_if(regions.begin(), regions.end(), [memory](const Region& each) {
      return memory >= each.begin && memory < each.begin + each.bytes;
    });
    const auto touches = [&](const Slot& slot) {
      const auto* other = static_cast<const uint8_t*>(slot.memory);
      return other != nullptr && other >= region->begin && other < region->begin + region->bytes;
    };
    if (region == regions.end() || region->role != Role::kTemporary || slot_at(table.x)->memory != memory ||
        std::count_if(slots.begin(), slots.end(), touches) != 2 || slot_at(before.table) != slots.end()) {
      left.push_back(step);
      continue;
    }
    const Slot entries{before.table, slot_at(table.table)->memory, 0};
    bytes->memory = slot_at(table.bytes)->memory;
    slots.insert(bytes + 1, entries);
    slots.erase(std::remove_if(slots.begin(), slots.end(),
                               [&](const Slot& slot) {
                                 return slot.at == table.x || slot.at == table.table || slot.at == table.bytes;
                               }),
                slots.end());
  }
  steps = std::move(left);
}

}  // namespace fxquant
