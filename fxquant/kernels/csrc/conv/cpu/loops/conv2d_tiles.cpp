// int8 convolution on tile registers (AMX), without im2col.
//
// LHS: tiles of 16 pixels. Where a window lies in x, and its bytes are whole K groups, x is read as it is. Else the rows of
// pixels that a strip reads are copied once, with padding (tile_input.h). Neighbouring windows share what they read.
// RHS: the packed weight, as conv_shape.h draws it.
//
//   for strip, N block in tasks:              # in parallel
//       copy the input of the strip           # if at all, then once for all its N blocks
//       for kChunk tiles of 16 pixels:        # their input stays in the L1 cache, the weights in L2
//           for two panels of the N block:
//               for two tiles of the chunk:
//                   accumulators = LHS * RHS  # 2 x 2 tiles, tile_block.h
//                   epilogue: zero point correction, scale, bias, residual, requantize, store
//
// With stride 1 tiles go over all pixels of the strip in one run, from one row to the next: what lies between two rows is
// computed and dropped. With other strides each row has tiles of its own.
#include "conv/cpu/loops/conv2d_tiles.h"

#include "conv/cpu/loops/conv_epilogue.h"
#include "conv/cpu/loops/deferred_lookup.h"
#include "conv/cpu/loops/tile_input.h"
#include "cpu/loops/tile_block.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

constexpr int64_t kChunk = 8;  // tiles

// Tiles of a strip: `runs` runs of so many pixels, each divided into tiles of `tile_rows` rows.
struct TileRuns {
  int64_t runs, length, tile_rows;
  int64_t line;  // pixels from one row of the result to the next in a run
  int64_t last;  // where the last tile of a run begins at most: the memory of x may end behind it

  int64_t tiles_per_run() const { return (length + tile_rows - 1) / tile_rows; }
  int64_t tiles() const { return runs * tiles_per_run(); }
};

// A tile: the pixels of its run from `pixel` on. Those before `begin` belong to the tile before.
struct RunTile {
  int64_t run;
  int64_t pixel;
  int64_t begin, end;
};

// The tasks of one thread, and its memory.
class TileConvTask {
 public:
  TileConvTask(const TileConvArgs& args, uint8_t* scratch)
      : a_(args),
        memory_(scratch + (-reinterpret_cast<uintptr_t>(scratch)) % kCacheLine),
        initial_(reinterpret_cast<int32_t*>(memory_)),
        known_(memory_ + args.initial_bytes()),
        offsets_(reinterpret_cast<int64_t*>(known_ + args.known_bytes())),
        input_(args, known_ + args.known_bytes() + args.offset_bytes()),
        epilogue_(args),
        lookup_{args},
        block_(args.steps(), args.tile_rows(), offsets_, args.tile_k_blocks(), input_.pixel_bytes()) {
    std::memset(known_, 0, args.known_bytes());
    input_.find_offsets(offsets_);
  }

  template <bool kSigned>
  void run(int64_t begin, int64_t end) {
    const int64_t blocks = a_.all_n_blocks();
    TileStrip strip;
    for (int64_t i = begin; i < end; ++i) {
      if (i / blocks != strip.number) strip = TileStrip::at(a_, i / blocks);
      n_block<kSigned>(strip, i % blocks);
    }
    lookup_.finish();
    block_.release();
  }

 private:
  const TileConvArgs& a_;
  uint8_t* const memory_;
  int32_t* const initial_;  // [N blocks][4 panels][16]
  uint8_t* const known_;    // [N blocks]: whether they have been computed
  int64_t* const offsets_;
  TileInputReader input_;
  const Epilogue epilogue_;
  DeferredLookup lookup_;
  TileBlock block_;
  alignas(64) int32_t acc_[kTileBlockRows * 2 * kPanel];

  TileRuns runs_of(const TileStrip& strip) const {
    const bool in_place = a_.input == TileInput::kInPlace;
    const int64_t tile_rows = a_.tile_rows(), line = a_.line();
    if (!a_.is_one_run()) {
      const int64_t last = in_place ? a_.columns - strip.column - tile_rows : strip.columns;
      return {strip.rows, strip.columns, tile_rows, strip.columns, last};
    }
    const int64_t length = (strip.rows - 1) * line + strip.columns;
    const int64_t plane = (a_.rows - strip.row - 1) * line + a_.columns - strip.column;  // pixels to the end of the plane
    return {1, length, tile_rows, line, in_place ? plane - tile_rows : length};
  }

  static RunTile tile_at(const TileRuns& runs, int64_t number) {
    const int64_t begin = number % runs.tiles_per_run() * runs.tile_rows;
    const int64_t end = runs.length - begin < runs.tile_rows ? runs.length : begin + runs.tile_rows;
    return {number / runs.tiles_per_run(), begin < runs.last ? begin : runs.last, begin, end};
  }

  // Computes what the accumulators of an N block start with, modulo 2^32. The correction is that of unsigned bytes,
  // 128 higher than signed ones.
  template <bool kSigned>
  const int32_t* initial(int64_t number, const int8_t* weight, int64_t width, int64_t channel, int64_t left) {
    int32_t* to = initial_ + number * kNBlockPanels * kPanel;
    if (known_[number] != 0) return to;
    known_[number] = 1;
    const uint8_t ones[kKGroup] = {1, 1, 1, 1};
    const Pixel one = load_pixel<false>(ones);
    for (int64_t v = 0; v < width; ++v, to += kPanel) {
      int32_t sums[kPanel] = {};
      if constexpr (kSigned) {
        Accumulators acc;
        const int64_t k_groups = a_.k_size() / kKGroup;
        for (int64_t k = 0; k < k_groups; ++k) {
          add_products(acc, one, load_weights(weight + (k * width + v) * kPanelGroupBytes));
        }
        store_accumulators(acc, sums);
      }
      for (int64_t c = 0; c < kPanel; ++c) {
        const int32_t correction = v * kPanel + c < left ? a_.zero_point_correction[channel + v * kPanel + c] : 0;
        to[c] = add_modulo(correction, multiply_modulo(128, sums[c]));
      }
    }
    return initial_ + number * kNBlockPanels * kPanel;
  }

  // Multiplies the input of a strip with one N block, and stores the result.
  template <bool kSigned>
  void n_block(const TileStrip& strip, int64_t number) {
    const ConvShape& s = a_.shape;
    const int64_t bundle = number / s.n_blocks(), block = number % s.n_blocks();
    const int64_t first = s.first_panel(block), width = s.first_panel(block + 1) - first;
    const int64_t channel = bundle * s.group_bundle_channels() + first * kPanel;
    const int64_t left = s.group_bundle_channels() - first * kPanel;  // channels from there on
    const int8_t* weight = a_.weight + (bundle * s.panels() + first) * s.panel_bytes();
    const int32_t* correction = initial<kSigned>(number, weight, width, channel, left);
    const uint8_t* x = input_.read(strip, bundle);
    const TileRuns runs = runs_of(strip);
    const int64_t tiles = runs.tiles(), most = a_.steps().panels();
    for (int64_t chunk = 0; chunk < tiles; chunk += kChunk) {
      const int64_t end = tiles - chunk < kChunk ? tiles : chunk + kChunk;
      for (int64_t v = 0; v < width; v += most) {
        const int64_t panels = width - v < most ? width - v : most;
        for (int64_t i = chunk; i < end; i += kBlockTiles) {
          const RunTile one = tile_at(runs, i), other = tile_at(runs, i + 1 < end ? i + 1 : i);
          block_.template multiply<kSigned>(at(x, one), i + 1 < end ? at(x, other) : nullptr,
                                            weight + v * kPanelGroupBytes, width, panels, acc_);
          const Ending ending{strip, runs, correction + v * kPanel, channel + v * kPanel, left - v * kPanel};
          finish(ending, one, panels, acc_);
          if (i + 1 < end) finish(ending, other, panels, acc_ + kTileRows * panels * kPanel);
        }
      }
    }
    const int64_t channels = left < width * kPanel ? left : width * kPanel;
    // The pixels of a strip follow each other in the result: it has whole rows, or a part of one.
    if (a_.table != nullptr) lookup_.next(strip.first(a_), strip.rows * strip.columns, channel, channels);
  }

  const uint8_t* at(const uint8_t* x, const RunTile& tile) const {
    return x + tile.run * input_.row_bytes() + tile.pixel * input_.pixel_bytes();
  }

  // What the epilogue of a tile has to know.
  struct Ending {
    const TileStrip& strip;
    const TileRuns& runs;
    const int32_t* correction;
    int64_t channel, left;
  };

  // Stores the pixels of a tile that belong to the result.
  void finish(const Ending& ending, const RunTile& tile, int64_t panels, const int32_t* acc) const {
    const TileRuns& runs = ending.runs;
    const int64_t first = ending.strip.first(a_) + tile.run * a_.columns;
    for (int64_t pixel = tile.begin; pixel < tile.end;) {
      const int64_t row = pixel / runs.line, column = pixel % runs.line;
      const int64_t next = (row + 1) * runs.line < tile.end ? (row + 1) * runs.line : tile.end;
      const int64_t count = next - pixel < ending.strip.columns - column ? next - pixel : ending.strip.columns - column;
      const int32_t* from = acc + (pixel - tile.pixel) * panels * kPanel;
      const int64_t to = first + row * a_.columns + column;
      panels == 2 ? store<2>(ending, from, to, count) : store<1>(ending, from, to, count);
      pixel = next;
    }
  }

  // Runs the epilogue of `count` successive pixels; none if it is negative.
  template <int V>
  void store(const Ending& ending, const int32_t* acc, int64_t row, int64_t count) const {
    const Epilogue end(epilogue_);
    for (int64_t r = 0; r < count; ++r) {
      Accumulators each[V];
      FXQ_UNROLL
      for (int v = 0; v < V; ++v) {
        each[v] = accumulators_of_sum(acc + (r * V + v) * kPanel, ending.correction + v * kPanel);
      }
      end.store<V>(each, row + r, ending.channel, ending.left);
    }
  }
};

}  // namespace

void conv_tiles_loop(const TileConvArgs& args, int64_t begin, int64_t end, uint8_t* scratch) {
  TileConvTask task(args, scratch);
  const bool reads_signed = args.x_signed && args.input == TileInput::kInPlace;
  reads_signed ? task.run<true>(begin, end) : task.run<false>(begin, end);
}

}  // namespace FXQ_ISA
}  // namespace fxquant
