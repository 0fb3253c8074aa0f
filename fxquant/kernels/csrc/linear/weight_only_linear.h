// What the bindings of weight_only_linear share: its arguments, their checks, and its result.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "common/call.h"
#include "common/memory_format.h"
#include "common/quantized_checks.h"
#include "linear/grouped_weight.h"

namespace fxquant {

struct WeightOnlyLinearCall {
  Tensor x;
  Tensor weight;
  Tensor scale;
  std::optional<Tensor> zero_point;
  Tensor bias;
  int64_t bits;
};

// A call, checked. It owns what `shape` points to.
struct WeightOnlyLinear {
  Tensor x;  // contiguous
  Tensor weight;
  Tensor scale;
  std::optional<Tensor> zero_point;
  Tensor bias;
  Tensor y;  // [..., channels]
  int64_t rows;
  GroupedWeight shape;
};

namespace weight_only {

constexpr const char* kOp = "fxquant::weight_only_linear";

inline void check_dtypes(const WeightOnlyLinearCall& c) {
  if (c.x.scalar_type() != ScalarType::Float) fail_dtype(kOp, "x", c.x.scalar_type(), "float32");
  if (c.weight.scalar_type() != ScalarType::Byte) fail_dtype(kOp, "weight", c.weight.scalar_type(), "uint8");
  if (c.scale.scalar_type() != ScalarType::Float) fail_dtype(kOp, "scale", c.scale.scalar_type(), "float32");
  if (c.zero_point && c.zero_point->scalar_type() != ScalarType::Char) {
    fail_dtype(kOp, "zero_point", c.zero_point->scalar_type(), "int8");
  }
  if (c.bias.scalar_type() != ScalarType::Float) fail_dtype(kOp, "bias", c.bias.scalar_type(), "float32");
  if (c.bits != 4 && c.bits != 8) fail(std::string(kOp) + ": bits is out of range", c.bits, "4 or 8");
  check_same_device(kOp, "weight", c.weight, c.x);
  check_same_device(kOp, "scale", c.scale, c.x);
  if (c.zero_point) check_same_device(kOp, "zero_point", *c.zero_point, c.x);
  check_same_device(kOp, "bias", c.bias, c.x);
}

inline GroupedWeight check_shapes(const WeightOnlyLinearCall& c) {
  if (c.x.dim() == 0) fail(std::string(kOp) + ": x has the wrong shape", "[]", "[..., in_features]");
  if (c.bias.dim() != 1) fail(std::string(kOp) + ": bias has the wrong shape", shape_of(c.bias), "[out_features]");
  const int64_t channels = c.bias.numel(), in_features = c.x.size(c.x.dim() - 1);
  const int64_t panels = channels / kPanelChannels + (channels % kPanelChannels != 0);
  const std::string padded = std::to_string(panels * kPanelChannels);
  if (c.scale.dim() != 2 || c.scale.size(0) < 1 || c.scale.size(1) != panels * kPanelChannels) {
    fail(std::string(kOp) + ": scale has the wrong shape", shape_of(c.scale), "[groups, " + padded + "]");
  }
  if (c.zero_point && !same_shape(*c.zero_point, c.scale)) {
    fail(std::string(kOp) + ": zero_point has the wrong shape", shape_of(*c.zero_point),
         shape_of(c.scale) + ", as scale");
  }
  const int64_t groups = c.scale.size(0);
  if (in_features % groups != 0) {
    fail(std::string(kOp) + ": the rows of x do not divide into groups",
         std::to_string(in_features) + " values, " + std::to_string(groups) + " groups", "groups of equal size");
  }
  const GroupedWeight shape{nullptr, nullptr, nullptr, nullptr, channels, panels, groups, in_features / groups,
                            c.bits == 4};
  const int64_t bytes = groups * shape.bytes_of_group();
  if (c.weight.dim() != 2 || c.weight.size(1) != kPanelChannels ||
      (panels == 0 ? c.weight.size(0) != 0 : c.weight.size(0) % panels != 0 || c.weight.size(0) / panels != bytes)) {
    fail(std::string(kOp) + ": weight has the wrong shape", shape_of(c.weight),
         "[" + std::to_string(panels) + " * " + std::to_string(bytes) + ", 16]");
  }
  return shape;
}

}  // namespace weight_only

inline WeightOnlyLinear prepare_weight_only_linear(const WeightOnlyLinearCall& c) {
  weight_only::check_dtypes(c);
  GroupedWeight shape = weight_only::check_shapes(c);
  std::vector<int64_t> sizes = sizes_of(c.x);
  sizes.back() = shape.channels;
  check_result_sizes(weight_only::kOp, sizes);
  int64_t rows = 1;
  for (size_t d = 0; d + 1 < sizes.size(); ++d) rows *= sizes[d];
  const Tensor y = empty_as(c.x, sizes, false);
  prefer_huge_pages(y);
  if (y.numel() == 0) return {c.x, c.weight, c.scale, c.zero_point, c.bias, y, 0, shape};
  WeightOnlyLinear p{row_major(c.x),    row_major(c.weight), row_major(c.scale), std::nullopt,
                     row_major(c.bias), y,                   rows,               shape};
  if (c.zero_point) p.zero_point = row_major(*c.zero_point);
  p.shape.bytes = static_cast<const uint8_t*>(p.weight.const_data_ptr());
  p.shape.scale = static_cast<const float*>(p.scale.const_data_ptr());
  p.shape.zero_point = p.zero_point ? static_cast<const int8_t*>(p.zero_point->const_data_ptr()) : nullptr;
  p.shape.bias = static_cast<const float*>(p.bias.const_data_ptr());
  return p;
}

}  // namespace fxquant
