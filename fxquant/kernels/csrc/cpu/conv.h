// Runs what common/conv.h prepared.
#pragma once
#include <algorithm>
#include <cstring>

#include "../common/conv.h"
#include "loops/conv2d.h"

namespace fxquant {

inline Tensor conv_cpu(const Conv& c) {
  if (c.empty()) return c.y;
  const ConvShape& s = c.shape;
  const auto bytes = [](const Tensor& t) { return static_cast<const uint8_t*>(t.const_data_ptr()); };
  const int64_t pixels = s.batch * s.height * s.width;
  const int64_t padded = (s.depth + kQuad - 1) / kQuad * kQuad;
  std::vector<uint8_t> outside(padded, static_cast<uint8_t>(c.x_zero_point));
  const uint8_t* last = pixels > 0 ? bytes(c.x) + (pixels - 1) * s.depth : outside.data();
  std::vector<uint8_t> last_copy;
  if (pixels > 0 && padded != s.depth) {
    last_copy.resize(padded);
    std::memcpy(last_copy.data(), last, s.depth);
    last = last_copy.data();
  }
  ConvArgs args{s,
                bytes(c.x),
                c.x.scalar_type() == ScalarType::Char,
                static_cast<const int8_t*>(c.weight.const_data_ptr()),
                c.start.const_data_ptr<int32_t>(),
                c.scale.const_data_ptr<float>(),
                c.bias.const_data_ptr<float>(),
                c.residual.has_value() ? bytes(*c.residual) : nullptr,
                c.residual.has_value() && c.residual->scalar_type() == ScalarType::Char,
                c.residual_scale,
                c.residual_zero_point,
                c.stored(),
                c.real(),
                c.grid,
                outside.data(),
                last,
                0};
  // Few rows share all weights: let each thread keep to its channels. Many rows: to its rows.
  constexpr int64_t kColumn = 8;
  args.column = c.weight.numel() > s.rows() * (s.depth + s.channels) ? args.row_tiles() : kColumn;
  constexpr int64_t kWork = 1 << 19;  // products of a task: a few microseconds
  constexpr int64_t kEpilogue = 16;   // products that take as long as to requantize a sum
  const int64_t width = s.panels() * kPanel / args.blocks();
  const int64_t work = kTileRows * width * (s.pieces() * s.quads() * kQuad + kEpilogue);  // a quad, if depthwise
  const int64_t tasks = args.row_tiles() * args.blocks();
  const auto loop = FXQ_VNNI_LOOP(conv_loop);
  torch::stable::parallel_for(0, tasks, std::max<int64_t>(kWork / work, 1),
                              [&](int64_t begin, int64_t end) { loop(args, begin, end); });
  return c.y;
}

}  // namespace fxquant
