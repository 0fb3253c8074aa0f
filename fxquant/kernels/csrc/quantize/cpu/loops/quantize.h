#pragma once
#include "common/types.h"
#include "cpu/isa.h"
#include "cpu/loops/channels.h"

namespace fxquant {

struct QuantizeArgs {
  Float from;  // of x
  Integer to;  // of q
  const void* x;
  void* q;
  Layout layout;
  ChannelQParams<float> qparams;          // for every type of x but double
  ChannelQParams<double> double_qparams;  // for double

  template <typename Visitor>
  void pointers(Visitor& visit) const {
    pointers(visit, layout.channels);
  }
  template <typename Visitor>
  void pointers(Visitor& visit, int64_t count) const {  // of the qparams
    visit.tensor(x);
    visit.tensor(q);
    qparams.pointers(visit, count);
    double_qparams.pointers(visit, count);
  }
};

// From [images, channels, pixels] to [images, pixels, channels].
struct QuantizeImageArgs {
  QuantizeArgs quantize;  // its layout is that of x along the channels: [images, channels, pixels]
  bool per_channel;       // There are qparams for each channel, or else one for all.

  template <typename Visitor>
  void pointers(Visitor& visit) const {
    quantize.pointers(visit, per_channel ? quantize.layout.channels : 1);
  }
};

constexpr int64_t kPixels = 256;  // pixels that are transposed at a time

}  // namespace fxquant

FXQ_DECLARE_LOOP(quantize_loop, (const QuantizeArgs& args, int64_t begin, int64_t end))
// begin and end count tasks: kPixels pixels of one image each.
FXQ_DECLARE_LOOP(quantize_image_loop, (const QuantizeImageArgs& args, int64_t begin, int64_t end))
