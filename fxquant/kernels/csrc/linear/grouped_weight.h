// A weight of 4 or 8 bits whose rows are divided into groups, each with a scale of its own. No torch: for loops and CUDA.
//
//   packed weight = [panels][groups][bytes of a group][16 channels]
//
// A panel is 16 output channels. For each of them a byte holds one value of the row, or two of 4 bits, the even one in the
// lower half; both are signed. A group of an odd number of 4-bit values ends with half a byte that nobody reads.
#pragma once
#include <cstdint>

namespace fxquant {

constexpr int64_t kPanelChannels = 16;

// Products are summed in stretches of at most so many values, which end where a group ends.
constexpr int64_t kStretch = 128;

struct GroupedWeight {
  const uint8_t* bytes;
  const float* scale;        // [groups][panels * 16]
  const int8_t* zero_point;  // likewise; null: all are 0
  const float* bias;         // [channels]
  int64_t channels;
  int64_t panels;
  int64_t groups;
  int64_t group_size;
  bool nibbles;

  int64_t bytes_of_group() const { return nibbles ? (group_size + 1) / 2 : group_size; }
  int64_t in_features() const { return groups * group_size; }

  // Where the values of a group lie: those of channel 0 of the panel.
  const uint8_t* group(int64_t panel, int64_t g) const {
    return bytes + (panel * groups + g) * bytes_of_group() * kPanelChannels;
  }
};

}  // namespace fxquant
