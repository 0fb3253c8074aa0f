// The bindings of conv2d and conv3d on the CPU: which loop runs, with which arguments.
#include "conv/cpu/conv.h"

#include <vector>

#include "conv/conv.h"
#include "conv/cpu/loops/conv2d.h"
#include "conv/cpu/loops/conv2d_brgemm.h"
#include "conv/cpu/loops/conv2d_tiles.h"
#include "conv/cpu/loops/depthwise.h"
#include "cpu/brgemm.h"
#include "cpu/launch.h"

namespace fxquant {

bool reads_steps(const ConvShape& s) {
  if (s.depthwise()) return true;
  if (s.has_few_channels() || uses_tile_loops()) return false;
  return !prefers_brgemm(s.out_pixels(), s.group_bundle_channels(), s.k_blocks() * s.k_block_bytes());
}

Tensor conv_cpu(const CheckedConv& c) {
  if (c.shape.empty()) return c.y;
  const auto bytes = [](const Tensor& t) { return static_cast<const uint8_t*>(t.const_data_ptr()); };
  const std::vector<uint8_t> padding_values(c.shape.in_channels, static_cast<uint8_t>(c.x_zero_point));
  ConvArgs args{};
  args.shape = c.shape;
  args.x = bytes(c.x);
  args.x_step = c.x_step;
  args.x_signed = c.x.scalar_type() == ScalarType::Char;
  args.padding_values = padding_values.data();
  args.weight = static_cast<const int8_t*>(c.weight.const_data_ptr());
  args.zero_point_correction = c.zero_point_correction.const_data_ptr<int32_t>();
  args.scale = c.scale.const_data_ptr<float>();
  args.bias = c.bias.const_data_ptr<float>();
  if (c.residual.has_value()) {
    args.residual = bytes(*c.residual);
    args.residual_signed = c.residual->scalar_type() == ScalarType::Char;
  }
  args.residual_scale = c.residual_scale;
  args.residual_zero_point = c.residual_zero_point;
  args.y = c.y_bytes();
  args.y_float = c.y_float();
  args.y_qparams = c.y_qparams;
  args.float_limits = c.float_limits;
  if (c.row_qparams.has_value()) {
    args.row_scale = c.row_qparams->scale.const_data_ptr<float>();
    args.row_zero_point = c.row_qparams->zero_point.const_data_ptr<int32_t>();
    args.row_step = c.row_qparams->step;
    args.weight_sums = c.row_qparams->weight_sums.const_data_ptr<int32_t>();
  }
  const ConvShape& s = c.shape;
  // FXQ_LOOP_WITH_DOT_PRODUCTS (cpu/dot_products.h) picks the version of a loop for the instruction set that is active when it runs.
  // These loops have a version of their own for VNNI, but for conv_tiles_loop, which FXQ_TILE_LOOP picks.
  if (s.depthwise()) {
    const DepthwiseArgs depthwise(args);
    launch(depthwise, depthwise.tasks(), depthwise.grain(),
           [](const DepthwiseArgs& a, int64_t begin, int64_t end, void* scratch) {
             FXQ_LOOP_WITH_DOT_PRODUCTS(depthwise_loop)(a, begin, end, static_cast<uint8_t*>(scratch));
           },
           depthwise.scratch());
    return c.y;
  }
  const bool is_dense = c.x_step == s.in_channels;
  if (is_dense && uses_tile_loops() && s.k_groups() > 0) {
    const TileConvArgs tile_args(args, torch::stable::get_num_threads());
    launch(tile_args, tile_args.tasks(), tile_args.grain(),
           [](const TileConvArgs& a, int64_t begin, int64_t end, void* scratch) {
             FXQ_TILE_LOOP(conv_tiles_loop)(a, begin, end, static_cast<uint8_t*>(scratch));
           },
           tile_args.scratch());
    return c.y;
  }
  if (is_dense && prefers_brgemm(s.out_pixels(), s.group_bundle_channels(), s.k_blocks() * s.k_block_bytes())) {
    const BrgemmConvArgs brgemm_args(args, torch::stable::get_num_threads());
    launch(brgemm_args, brgemm_args.tasks(), brgemm_args.grain(),
           [](const BrgemmConvArgs& a, int64_t begin, int64_t end, void* scratch) {
             FXQ_LOOP_WITH_VNNI(conv_brgemm_loop)(a, begin, end, static_cast<uint8_t*>(scratch));
           },
           brgemm_args.scratch());
    return c.y;
  }
  const Conv2dArgs conv2d(args);
  launch(conv2d, conv2d.tasks(), conv2d.grain(),
         [](const Conv2dArgs& a, int64_t begin, int64_t end, void* scratch) {
           FXQ_LOOP_WITH_DOT_PRODUCTS(conv_loop)(a, begin, end, static_cast<uint8_t*>(scratch));
         },
         conv2d.scratch());
  return c.y;
}

namespace {

Tensor conv2d_cpu(const ConvCall& call) { return conv_cpu(checked_conv("fxquant::conv2d", call, 2, reads_steps)); }
Tensor conv3d_cpu(const ConvCall& call) { return conv_cpu(checked_conv("fxquant::conv3d", call, 3, reads_steps)); }

}  // namespace

// FXQ_KERNEL (common/call.h) fills a ConvCall from the dispatcher's stack, field by field.
STABLE_TORCH_LIBRARY_IMPL(fxquant, CPU, m) {
  m.impl("conv2d", FXQ_KERNEL(conv2d_cpu));
  m.impl("conv3d", FXQ_KERNEL(conv3d_cpu));
}

}  // namespace fxquant
