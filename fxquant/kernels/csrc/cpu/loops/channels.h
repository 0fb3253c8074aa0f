// Loops over [outer, channels, inner] with qparams for each channel. No torch.
#pragma once
#include "common/layout.h"
#include "cpu/loops/blocks.h"
#include "math/affine.h"

namespace fxquant {

// Covers the elements begin <= i < end of a dense tensor, which need not be whole rows:
//   run(offset, count, channel): a stretch of one channel (channels == 1, or inner > 1)
//   row(offset, count, channel): count successive channels, one element each (inner == 1)
// Both should do no more than call a free function: a loop written in a lambda vectorises badly.
template <typename Run, typename Row>
static inline void for_each_channel(const Layout& layout, int64_t begin, int64_t end, Run run, Row row) {
  if (layout.channels == 1) {
    run(begin, end - begin, int64_t{0});
    return;
  }
  const int64_t length = layout.inner == 1 ? layout.channels : layout.inner;
  int64_t done = begin % length;
  int64_t channel = (begin / layout.inner) % layout.channels;  // then counted on: a division costs as much as 50 elements
  while (begin < end) {
    const int64_t count = length - done < end - begin ? length - done : end - begin;
    if (layout.inner == 1) {
      row(begin, count, done);
    } else {
      run(begin, count, channel);
      channel = channel + 1 == layout.channels ? 0 : channel + 1;
    }
    begin += count;
    done = 0;
  }
}

// Channels side by side whose qparams stay in registers, row after row.
constexpr int64_t kColumns = 64;

// The qparams of all channels, as arrays: [channels] each.
template <typename Real>
struct ChannelQParams {
  const Real* scale;
  const Real* inverse;
  const Real* zero_point;
  Real low;
  Real high;

  Affine<Real> at(int64_t c) const { return {scale[c], inverse[c], zero_point[c], low, high}; }
  ChannelQParams from(int64_t c) const { return {scale + c, inverse + c, zero_point + c, low, high}; }

  template <typename Visitor>
  void pointers(Visitor& visit, int64_t count) const {
    visit.array(scale, count);
    visit.array(inverse, count);
    visit.array(zero_point, count);
  }
};

// The qparams of channels side by side that are taken two at a time: even and odd channels apart, [channels / 2] each.
template <typename Real>
struct PairedQParams {
  ChannelQParams<Real> even;
  ChannelQParams<Real> odd;

  Affine<Real> at(int64_t c) const { return (c % 2 ? odd : even).at(c / 2); }
  ChannelQParams<Real> every_second_from(int64_t c) const { return (c % 2 ? odd : even).from(c / 2); }
};

// One scale and zero point for all, in the place of ChannelQParams.
template <typename Real>
struct TensorQParams {
  Affine<Real> affine;

  // It is copied field by field: a copy of the whole does not vectorise.
  Affine<Real> at(int64_t) const { return {affine.scale, affine.inverse, affine.zero_point, affine.low, affine.high}; }
  TensorQParams from(int64_t) const { return *this; }
};

}  // namespace fxquant
