// Runs loops on random arguments with every instruction set of this CPU, as a plain program without torch: so it runs under an
// emulator too. scripts/plain_loops.py builds it.
//
//   plain_loops CASES [FIRST]
//
// For each case it prints a digest of what the portable set computed, which must be the same on every processor. Results of
// the other sets are compared with it byte by byte. The last line counts; a difference makes the exit status 1.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <random>
#include <string>
#include <vector>

#include "conv/cpu/loops/conv2d.h"
#include "conv/cpu/loops/conv2d_tiles.h"
#include "conv/cpu/loops/depthwise.h"
#include "linear/cpu/loops/weight_only_linear.h"
#include "matmul/cpu/loops/matmul.h"
#include "matmul/cpu/loops/matmul_tiles.h"
#include "norm/cpu/loops/layer_norm.h"
#include "norm/cpu/loops/softmax.h"
#include "quantize/cpu/loops/quantize.h"
#include "quantize/cpu/loops/quantize_per_token.h"
#include "recurrent/cpu/loops/recurrent_steps.h"

extern "C" int32_t fxquant_has_isa(int32_t isa);
extern "C" int32_t fxquant_set_isa(int32_t isa);
extern "C" int32_t fxquant_best_isa();

namespace {

using namespace fxquant;

using Bytes = std::vector<uint8_t>;

// Random numbers that are the same everywhere.
class Draw {
 public:
  explicit Draw(uint32_t seed) : random_(seed) {}

  int64_t number(int64_t low, int64_t high) { return low + static_cast<int64_t>(random_() % (high - low + 1)); }
  bool chance(int64_t one_in) { return number(1, one_in) == 1; }
  int64_t one_of(std::initializer_list<int64_t> of) { return of.begin()[number(0, static_cast<int64_t>(of.size()) - 1)]; }
  // A float of any sign, whose magnitude lies between 2^low and 2^(high + 1).
  float real(int low, int high) {
    const float fraction = 1.0f + static_cast<float>(random_() >> 9) / 8388608.0f;
    const float magnitude = std::ldexp(fraction, static_cast<int>(number(low, high)));
    return random_() & 1 ? magnitude : -magnitude;
  }
  float positive(int low, int high) { return std::fabs(real(low, high)); }
  Bytes bytes(int64_t count) {
    Bytes all(count);
    for (uint8_t& byte : all) byte = static_cast<uint8_t>(random_());
    return all;
  }
  std::vector<float> reals(int64_t count, int low, int high) {
    std::vector<float> all(count);
    for (float& each : all) each = real(low, high);
    return all;
  }
  std::vector<int32_t> integers(int64_t count, int32_t most) {
    std::vector<int32_t> all(count);
    for (int32_t& each : all) each = static_cast<int32_t>(number(-most, most));
    return all;
  }
  OutputQParams output(bool is_signed) {
    const int32_t least = is_signed ? -128 : 0, zero_point = static_cast<int32_t>(number(least, least + 255));
    const int32_t low = chance(2) ? least : static_cast<int32_t>(number(least, zero_point));
    const int32_t high = chance(2) ? least + 255 : static_cast<int32_t>(number(zero_point, least + 255));
    return {1.0f / positive(-6, 2), static_cast<float>(low - zero_point), static_cast<float>(high - zero_point), zero_point};
  }

 private:
  std::mt19937 random_;
};

// What a case computes: bytes that all sets must agree on.
using Result = Bytes;

template <typename T>
void append(Result& to, const std::vector<T>& values) {
  const auto* from = reinterpret_cast<const uint8_t*>(values.data());
  to.insert(to.end(), from, from + values.size() * sizeof(T));
}

// Calls run(begin, end) for some stretches of the tasks, as threads would.
template <typename Run>
void in_parts(int64_t tasks, int64_t parts, Run run) {
  for (int64_t i = 0; i < parts; ++i) run(i * tasks / parts, (i + 1) * tasks / parts);
}

// The bytes of a packed weight behind the end of a K block are zero.
void clear_ends(const ConvShape& s, Bytes& weight) {
  const int64_t k_groups = s.k_groups(), bytes = s.k_block_bytes();
  for (int64_t bundle = 0; bundle < s.group_bundles(); ++bundle) {
    for (int64_t block = 0; block < s.n_blocks(); ++block) {
      const int64_t first = s.first_panel(block), width = s.first_panel(block + 1) - first;
      uint8_t* const at = weight.data() + (bundle * s.panels() + first) * s.panel_bytes();
      for (int64_t k = 0; k < s.k_blocks() * k_groups; ++k) {
        for (int64_t i = 0; i < width * kPanelGroupBytes; ++i) {
          if (k % k_groups * kKGroup + i % kKGroup >= bytes) at[k * width * kPanelGroupBytes + i] = 0;
        }
      }
    }
  }
}

ConvShape random_shape(Draw& draw, bool depthwise) {
  if (!depthwise && draw.chance(3)) {
    // One by one: compilers evaluate arguments in an order of their own.
    const int64_t rows = draw.number(1, 40), in_channels = draw.one_of({1, 3, 16, 63, 64, 130}), channels = draw.number(1, 150);
    return linear_shape(rows, in_channels, channels);
  }
  ConvShape s{};
  s.batch = draw.number(1, 2);
  s.groups = depthwise ? draw.one_of({2, 16, 17, 40, 64, 70, 96}) : draw.one_of({1, 1, 1, 2, 3, 8});
  s.in_channels = depthwise ? s.groups : s.groups * draw.one_of({1, 3, 4, 7, 16, 20, 33});
  s.channels = depthwise ? s.groups : s.groups * draw.one_of({1, 5, 16, 24, 40, 70});
  if (!depthwise && s.depthwise()) s.channels *= 2;  // what is depthwise has a loop of its own
  const bool is_volume = draw.chance(4);
  s.kernel_planes = is_volume ? draw.number(1, 3) : 1;
  s.stride_planes = is_volume ? draw.number(1, 2) : 1;
  s.dilation_planes = 1;
  s.front = is_volume ? draw.number(0, 1) : 0;
  s.kernel_height = draw.one_of({1, 3, 3, 5, 7});
  s.kernel_width = draw.one_of({1, 3, 3, 5, 7});
  s.stride_height = draw.number(1, 2), s.stride_width = draw.number(1, 3);
  s.dilation_height = draw.chance(4) ? 2 : 1, s.dilation_width = draw.chance(4) ? 2 : 1;
  s.top = draw.number(0, 3), s.left = draw.number(0, 3);
  const auto output = [](int64_t size, int64_t kernel, int64_t stride, int64_t dilation, int64_t padding) {
    return (size + 2 * padding - (dilation * (kernel - 1) + 1)) / stride + 1;
  };
  s.planes = is_volume ? s.kernel_planes + draw.number(0, 2) : 1;
  s.height = s.dilation_height * (s.kernel_height - 1) + draw.number(1, 8);
  s.width = s.dilation_width * (s.kernel_width - 1) + draw.number(1, 30);
  s.out_planes = output(s.planes, s.kernel_planes, s.stride_planes, 1, s.front);
  s.out_height = output(s.height, s.kernel_height, s.stride_height, s.dilation_height, s.top);
  s.out_width = output(s.width, s.kernel_width, s.stride_width, s.dilation_width, s.left);
  return s;
}

// The arguments of a convolution, and the memory that they point to.
struct Convolution {
  ConvArgs args{};
  Bytes x, padding, weight, residual, table, y;
  std::vector<int32_t> correction, row_zero_point, weight_sums;
  std::vector<float> scale, bias, row_scale, y_float;

  Convolution(Draw& draw, bool depthwise) {
    args.shape = random_shape(draw, depthwise);
    const ConvShape& s = args.shape;
    const bool may_step = depthwise || !s.has_few_channels();
    args.x_step = s.in_channels + (may_step && draw.chance(4) ? draw.number(1, 20) : 0);
    args.x_signed = draw.chance(2);
    x = draw.bytes((s.batch * s.planes * s.height * s.width - 1) * args.x_step + s.in_channels);
    padding.assign(s.in_channels, draw.bytes(1)[0]);
    weight = draw.bytes(s.group_bundles() * s.panels() * s.panel_bytes());
    clear_ends(s, weight);
    correction = draw.integers(s.channels, 1 << 20);
    scale = draw.reals(s.channels, -14, draw.chance(8) ? 30 : -8);
    bias = draw.reals(s.channels, -8, 4);
    args.x = x.data(), args.padding_values = padding.data();
    args.weight = reinterpret_cast<const int8_t*>(weight.data());
    args.zero_point_correction = correction.data(), args.scale = scale.data(), args.bias = bias.data();
    const int64_t outputs = s.out_pixels() * s.channels;
    if (draw.chance(3)) {
      residual = draw.bytes(outputs);
      args.residual = residual.data();
      args.residual_signed = draw.chance(2);
      args.residual_scale = draw.positive(-6, 0);
      args.residual_zero_point = static_cast<int32_t>(draw.number(-128, 127));
    }
    args.y_qparams = draw.output(draw.chance(2));
    if (s.is_pointwise() && !depthwise && draw.chance(4)) {
      row_scale = draw.reals(s.out_pixels(), -6, 0);
      row_zero_point = draw.integers(s.out_pixels(), 128);
      weight_sums = draw.integers(s.channels, 1 << 16);
      args.row_scale = row_scale.data(), args.row_zero_point = row_zero_point.data(), args.weight_sums = weight_sums.data();
    }
    if (draw.chance(4)) {
      y_float.resize(outputs);
      args.y_float = y_float.data();
    } else {
      y.resize(outputs);
      args.y = y.data();
      table = draw.bytes(256);
      if (draw.chance(4)) args.table = table.data();
    }
  }

  Result result() {
    Result all;
    append(all, y);
    append(all, y_float);
    std::fill(y.begin(), y.end(), uint8_t{0});
    std::fill(y_float.begin(), y_float.end(), 0.0f);
    return all;
  }
};

// A case: how often the loops run is the caller's choice, and each time with the set that is active.
template <typename Compare>
void convolution(Draw& draw, Compare compare) {
  Convolution c(draw, false);
  const Conv2dArgs args(c.args);
  const int64_t parts = draw.number(1, 3);
  const bool may_use_tiles = c.args.x_step == c.args.shape.in_channels && c.args.shape.k_groups() > 0;
  compare([&] {
    if (may_use_tiles && uses_tile_loops()) {
      const TileConvArgs tiles(c.args, parts);
      Bytes scratch(tiles.scratch());
      in_parts(tiles.tasks(), parts, [&](int64_t begin, int64_t end) {
        FXQ_TILE_LOOP(conv_tiles_loop)(tiles, begin, end, scratch.data());
      });
      return c.result();
    }
    Bytes scratch(args.scratch());
    in_parts(args.tasks(), parts, [&](int64_t begin, int64_t end) {
      FXQ_LOOP_WITH_DOT_PRODUCTS(conv_loop)(args, begin, end, scratch.data());
    });
    return c.result();
  });
}

template <typename Compare>
void depthwise(Draw& draw, Compare compare) {
  Convolution c(draw, true);
  const DepthwiseArgs args(c.args);
  const int64_t parts = draw.number(1, 3);
  compare([&] {
    Bytes scratch(args.scratch());
    in_parts(args.tasks(), parts, [&](int64_t begin, int64_t end) {
      FXQ_LOOP_WITH_DOT_PRODUCTS(depthwise_loop)(args, begin, end, scratch.data());
    });
    return c.result();
  });
}

Batches batch_of(int64_t count, int64_t stride) {
  Batches batches{};
  batches.dims = 1;
  batches.size[0] = count;
  batches.stride[0] = stride;
  return batches;
}

template <typename Compare>
void matmul(Draw& draw, Compare compare) {
  const int64_t batch = draw.number(1, 3), rows = draw.number(1, 70), columns = draw.number(1, 300);
  const int64_t k = draw.one_of({1, 3, 4, 17, 32, 63, 64, 129});
  const bool a_signed = draw.chance(2), b_signed = draw.chance(2), k_first = draw.chance(2), shares_b = draw.chance(3);
  const int64_t panels = (columns + kPanel - 1) / kPanel, of_b = shares_b ? 1 : batch;
  const Bytes a = draw.bytes(batch * rows * k), b = draw.bytes(of_b * columns * k);
  const int32_t a_zero = static_cast<int32_t>(draw.number(0, 255)), b_zero = static_cast<int32_t>(draw.number(-128, 127));
  Bytes y(batch * rows * columns);
  std::vector<float> y_float(y.size());
  const float scale = draw.positive(-14, -8);
  const OutputQParams qparams = draw.output(draw.chance(2));
  const bool is_float = draw.chance(3);
  const int64_t parts = draw.number(1, 3);
  compare([&] {
    std::fill(y.begin(), y.end(), uint8_t{0});
    const bool on_tiles = uses_tile_loops();
    const int64_t padded = on_tiles ? tile_padded_k(k) : (k + kKGroup - 1) / kKGroup * kKGroup;
    // Tiles read whole rows where they lie, signed or not. What is packed is unsigned, and its zero point is that of bytes.
    const bool in_place = on_tiles && padded == k, flips = a_signed && in_place;
    const int32_t zero = a_zero - (flips ? 128 : 0);
    Bytes packed(of_b * panels * kPanel * padded), of_a(on_tiles ? 0 : batch * rows * padded);
    std::vector<int32_t> sums(of_b * panels * kPanel);
    const PackArgs pack_b{b.data(), static_cast<uint8_t>(b_signed ? 0 : 0x80), batch_of(of_b, columns * k),
                          k_first ? k : 1, k_first ? 1 : columns, columns, k, padded, on_tiles ? kNBlockPanels : 1,
                          static_cast<int32_t>(k * zero * b_zero), -zero, packed.data(), sums.data()};
    FXQ_LOOP_WITH_DOT_PRODUCTS(pack_panels_loop)(pack_b, 0, of_b * panels);
    MatmulArgs args{rows, k, columns, a.data(), k, batch_of(batch, rows * k),
                    reinterpret_cast<const int8_t*>(packed.data()), sums.data(), batch_of(batch, shares_b ? 0 : 1),
                    -b_zero, scale, qparams, is_float ? nullptr : y.data(), is_float ? y_float.data() : nullptr};
    if (on_tiles) {
      const TileMatmulArgs tiles{args, padded, 1, a_signed, in_place};
      Bytes scratch(tiles.scratch());
      in_parts(batch * tiles.strips() * tiles.n_blocks(), parts, [&](int64_t begin, int64_t end) {
        FXQ_TILE_LOOP(matmul_tiles_loop)(tiles, begin, end, scratch.data());
      });
    } else {
      const PackArgs pack_a{a.data(), static_cast<uint8_t>(a_signed ? 0x80 : 0), batch_of(batch, rows * k), k, 1, rows, k,
                            padded, 1, 0, 0, of_a.data(), nullptr};
      FXQ_LOOP(pack_rows_loop)(pack_a, 0, batch * rows);
      args.a = of_a.data(), args.row_stride = padded, args.a_matrices = batch_of(batch, rows * padded);
      in_parts(batch * args.row_blocks() * args.column_blocks(), parts, [&](int64_t begin, int64_t end) {
        FXQ_LOOP_WITH_DOT_PRODUCTS(matmul_loop)(args, begin, end);
      });
    }
    Result all;
    append(all, y);
    append(all, y_float);
    return all;
  });
}

template <typename Compare>
void weight_only_linear(Draw& draw, Compare compare) {
  GroupedWeight w{};
  w.channels = draw.number(1, 70), w.panels = (w.channels + kPanelChannels - 1) / kPanelChannels;
  w.groups = draw.number(1, 3), w.group_size = draw.one_of({1, 7, 32, 128, 200}), w.nibbles = draw.chance(2);
  const int64_t rows = draw.one_of({1, 2, 5, 17, 70}), scales = w.groups * w.panels * kPanelChannels;
  const Bytes bytes = draw.bytes(w.panels * w.groups * w.bytes_of_group() * kPanelChannels);
  const std::vector<float> scale = draw.reals(scales, -8, -3), bias = draw.reals(w.channels, -4, 2);
  const Bytes zero_point = draw.bytes(scales);
  const std::vector<float> x = draw.reals(rows * w.in_features(), -6, 3);
  w.bytes = bytes.data(), w.scale = scale.data(), w.bias = bias.data();
  w.zero_point = draw.chance(2) ? reinterpret_cast<const int8_t*>(zero_point.data()) : nullptr;
  std::vector<float> y(rows * w.channels), scratch(kWeightOnlyScratch);
  const WeightOnlyLinearArgs args{w, x.data(), y.data(), rows};
  compare([&] {
    std::fill(y.begin(), y.end(), 0.0f);
    FXQ_LOOP(weight_only_linear_loop)(args, 0, w.panels, scratch.data());
    Result all;
    append(all, y);
    return all;
  });
}

// Rows of floats, with infinities and NaN among them, or of bytes.
struct NormRows {
  RowType type;
  int64_t rows, columns;
  std::vector<float> floats;
  Bytes bytes;

  explicit NormRows(Draw& draw)
      : type(static_cast<RowType>(draw.number(0, 2))),
        rows(draw.number(1, 9)),
        columns(draw.one_of({1, 3, 16, 49, 64, 65, 200, 513, 1000})),
        floats(draw.reals(rows * columns, -8, 4)),
        bytes(draw.bytes(rows * columns)) {
    if (!draw.chance(4)) return;
    floats[draw.number(0, rows * columns - 1)] = INFINITY;
    floats[draw.number(0, rows * columns - 1)] = -INFINITY;
    floats[draw.number(0, rows * columns - 1)] = NAN;
  }
  const void* data() const { return type == RowType::kFloat ? static_cast<const void*>(floats.data()) : bytes.data(); }
};

template <typename Compare>
void softmax(Draw& draw, Compare compare) {
  const NormRows x(draw);
  Bytes y(x.rows * x.columns);
  const SoftmaxArgs args{x.data(), y.data(), x.type, x.columns, draw.positive(-6, 0), draw.chance(2),
                         {256.0f, 0.0f, 255.0f, 0}};
  compare([&] {
    std::vector<int32_t> steps(rows_together(x.columns) * x.columns);
    FXQ_LOOP(softmax_loop)(args, 0, x.rows, steps.data());
    return y;
  });
}

template <typename Compare>
void layer_norm(Draw& draw, Compare compare) {
  const NormRows x(draw);
  const std::vector<float> weight = draw.reals(x.columns, -2, 1), bias = draw.reals(x.columns, -4, 0);
  Bytes y(x.rows * x.columns);
  const LayerNormArgs args{x.data(), weight.data(), bias.data(), y.data(), x.type, x.columns, 1e-5,
                           draw.output(draw.chance(2))};
  compare([&] {
    std::vector<int32_t> steps(rows_together(x.columns) * x.columns);
    FXQ_LOOP(layer_norm_loop)(args, 0, x.rows, steps.data());
    return y;
  });
}

template <typename Compare>
void quantize(Draw& draw, Compare compare) {
  QuantizeArgs args{};
  args.from = draw.chance(2) ? Float::kFloat : draw.chance(2) ? Float::kHalf : Float::kBFloat16;
  args.to = draw.chance(2) ? Integer::kUint8 : draw.chance(2) ? Integer::kInt8 : Integer::kInt32;
  args.layout = {draw.number(1, 3), draw.one_of({1, 3, 16, 70}), draw.one_of({1, 5, 300})};
  const int64_t count = args.layout.numel(), channels = args.layout.channels;
  const Bytes bits = draw.bytes(count * 4);  // any float: NaN and infinities too
  const std::vector<float> usual = draw.reals(count, -6, 8);
  const bool any = args.from != Float::kFloat || draw.chance(3);
  args.x = any ? static_cast<const void*>(bits.data()) : usual.data();
  std::vector<float> scale(channels), inverse(channels), zero_point(channels);
  const float low = args.to == Integer::kUint8 ? 0.0f : -128.0f;
  for (int64_t c = 0; c < channels; ++c) {
    scale[c] = draw.positive(-6, 2), inverse[c] = 1.0f / scale[c];
    zero_point[c] = low + static_cast<float>(draw.number(0, 255));
  }
  args.qparams = {scale.data(), inverse.data(), zero_point.data(), low, low + 255.0f};
  Bytes q(count * (args.to == Integer::kInt32 ? 4 : 1));
  args.q = q.data();
  compare([&] {
    FXQ_LOOP(quantize_loop)(args, 0, count);
    return q;
  });
}

template <typename Compare>
void quantize_per_token(Draw& draw, Compare compare) {
  const NormRows x(draw);
  const bool to_signed = draw.chance(2), symmetric = draw.chance(2);
  const int32_t low = to_signed ? -128 : 0;
  Bytes q(x.rows * x.columns);
  std::vector<float> scale(x.rows);
  std::vector<int32_t> zero_point(x.rows);
  const QuantizePerTokenArgs args{Float::kFloat, to_signed, x.floats.data(), q.data(), scale.data(), zero_point.data(),
                                  x.columns, {1e-7f, 0.0f, low, low + 255, low + 128, symmetric}};
  compare([&] {
    FXQ_LOOP(quantize_per_token_loop)(args, 0, x.rows);
    Result all = q;
    append(all, scale);
    append(all, zero_point);
    return all;
  });
}

template <typename Compare>
void gates(Draw& draw, Compare compare) {
  const auto mode = static_cast<RecurrentMode>(draw.number(0, 3));
  const int64_t rows = draw.number(1, 4), size = draw.one_of({1, 7, 64, 300});
  const int64_t tasks = rows * ((size + kGateValues - 1) / kGateValues);
  const std::vector<float> x = draw.reals(rows * size * gates_of(mode), -6, 4), h = draw.reals(x.size(), -6, 4);
  const std::vector<float> cells = draw.reals(rows * size, -4, 1), states = draw.reals(rows * size, -4, 0);
  std::vector<float> cell = cells, to = states;
  const GatesArgs args{mode, size, x.data(), h.data(), cell.data(), to.data()};
  compare([&] {
    cell = cells, to = states;
    FXQ_LOOP(gates_loop)(args, 0, tasks);
    Result all;
    append(all, cell);
    append(all, to);
    return all;
  });
}

uint64_t digest(const Result& result) {
  uint64_t hash = 14695981039346656037u;
  for (const uint8_t byte : result) hash = (hash ^ byte) * 1099511628211u;
  return hash;
}

// By the numbers of fxquant_set_isa.
constexpr const char* kSets[] = {"portable", "avx2", "avx512", "avx512_vnni", "brgemm", "amx", "amx_emulated", "neon_dotprod",
                                 "neon_i8mm"};

struct Counts {
  int64_t results = 0, differences = 0;
  std::vector<int32_t> sets;
};

// Returns what compares a case: run() is called with each set.
auto comparer(Counts& counts, const char* name, int64_t number) {
  return [&counts, name, number](auto run) {
    fxquant_set_isa(kPortable);
    const Result expected = run();
    std::printf("%s %lld %016llx\n", name, static_cast<long long>(number),
                static_cast<unsigned long long>(digest(expected)));
    for (const int32_t set : counts.sets) {
      fxquant_set_isa(set);
      ++counts.results;
      if (run() == expected) continue;
      ++counts.differences;
      std::printf("%s %lld: %s differs from portable\n", name, static_cast<long long>(number), kSets[set]);
    }
  };
}

}  // namespace

int main(int count, char** arguments) {
  const int64_t cases = count > 1 ? std::atoll(arguments[1]) : 100;
  const int64_t first = count > 2 ? std::atoll(arguments[2]) : 0;
  Counts counts;
  std::string names;
  for (const int32_t set : {1, 2, 3, 5, 6, 7, 8}) {  // brgemm is a part of torch
    if (!fxquant_has_isa(set)) continue;
    counts.sets.push_back(set);
    names += std::string(" ") + kSets[set];
  }
  for (int64_t i = first; i < first + cases; ++i) {
    const auto each = [&](const char* name, auto loop, uint32_t kind) {
      Draw draw(static_cast<uint32_t>(i) * 16 + kind);
      loop(draw, comparer(counts, name, i));
    };
    each("conv", [](Draw& draw, auto compare) { convolution(draw, compare); }, 0);
    each("depthwise", [](Draw& draw, auto compare) { depthwise(draw, compare); }, 1);
    each("matmul", [](Draw& draw, auto compare) { matmul(draw, compare); }, 2);
    each("weight_only_linear", [](Draw& draw, auto compare) { weight_only_linear(draw, compare); }, 3);
    each("softmax", [](Draw& draw, auto compare) { softmax(draw, compare); }, 4);
    each("layer_norm", [](Draw& draw, auto compare) { layer_norm(draw, compare); }, 5);
    each("quantize", [](Draw& draw, auto compare) { quantize(draw, compare); }, 6);
    each("quantize_per_token", [](Draw& draw, auto compare) { quantize_per_token(draw, compare); }, 7);
    each("gates", [](Draw& draw, auto compare) { gates(draw, compare); }, 8);
  }
  std::printf("sets: portable%s; best %s; %lld results compared, %lld differences\n", names.c_str(),
              kSets[fxquant_best_isa()], static_cast<long long>(counts.results), static_cast<long long>(counts.differences));
  return counts.differences != 0;
}
