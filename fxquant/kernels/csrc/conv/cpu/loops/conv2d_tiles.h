#pragma once
#include "conv/cpu/loops/conv2d.h"
#include "cpu/loops/tile_block.h"

namespace fxquant {

// Where the tiles of a convolution read their rows.
enum class TileInput : int32_t {
  kInPlace,   // x itself: a window may not leave it, and the bytes of a K block are whole K groups
  kCopied,    // a copy of the rows of pixels that a strip reads, with padding; int8 has become uint8
  kGathered,  // a copy of the window of each pixel: few channels with dilation, or windows that are far apart
};

// A convolution of one image or volume, or a linear layer, on tiles: it is not depthwise, and K is not empty. A task is
// one strip times one N block. A strip is some rows of a plane of the result, or a part of one row.
struct TileConvArgs : Conv2dArgs {
  TileInput input;
  int64_t planes, rows, columns;  // of the result, as strips divide it: pixels that follow each other may be one row
  int64_t strip_rows, strip_columns;

  void row_window() const = delete;  // How it is divided holds for the whole result alone.

  TileConvArgs(const ConvArgs& args, int64_t threads) : Conv2dArgs(args) {
    if (shape.is_pointwise()) join_pixels();
    planes = shape.all_planes();
    rows = shape.out_height;
    columns = shape.out_width;
    input = choose_input();
    if (input == TileInput::kGathered) {
      columns = shape.out_pixels();
      planes = rows = 1;
    }
    choose_strips(threads);
  }

  FXQ_INLINE int64_t strips_per_row() const { return (columns + strip_columns - 1) / strip_columns; }
  FXQ_INLINE int64_t strips_per_plane() const {
    return (rows + strip_rows - 1) / strip_rows * strips_per_row();
  }
  FXQ_INLINE int64_t strips() const { return planes * strips_per_plane(); }
  FXQ_INLINE int64_t tasks() const { return strips() * all_n_blocks(); }
  FXQ_INLINE int64_t grain() const {
    constexpr int64_t kWork = 1 << 19;  // as conv2d.h says; tiles multiply a few times as fast
    constexpr int64_t kEpilogue = 48;
    const int64_t outputs = shape.out_pixels() * shape.group_bundles() * shape.panels() * kPanel;
    const int64_t work = outputs * (k_size() / 4 + kEpilogue) / tasks();
    return work < kWork ? kWork / (work + 1) : 1;
  }

  // K, with the bytes that fill the last K group of each K block.
  FXQ_INLINE int64_t k_size() const { return shape.k_blocks() * shape.k_groups() * kKGroup; }
  // A gathered window is one K block, as its bytes are contiguous.
  FXQ_INLINE int64_t tile_k_blocks() const { return input == TileInput::kGathered ? 1 : shape.k_blocks(); }
  FXQ_INLINE KSteps steps() const { return KSteps::of(k_size() / kKGroup / tile_k_blocks()); }

  // Rows and columns of x, or of its copy, that so many rows and columns of the result read.
  FXQ_INLINE int64_t read_rows(int64_t count) const {
    return (count - 1) * shape.stride_height + (shape.kernel_height - 1) * shape.dilation_height + 1;
  }
  FXQ_INLINE int64_t read_columns(int64_t count) const {
    return (count - 1) * shape.stride_width + (shape.kernel_width - 1) * shape.dilation_width + 1;
  }
  // Pixels from one row of x, or of its copy, to the next.
  FXQ_INLINE int64_t line() const { return input == TileInput::kInPlace ? shape.width : read_columns(strip_columns); }
  // With stride 1 the rows of a strip are one run: tiles go over the pixels between two rows, whose results are dropped.
  FXQ_INLINE bool is_one_run() const {
    return input != TileInput::kGathered && shape.stride_height == 1 && shape.stride_width == 1;
  }
  // Rows of a tile.
  FXQ_INLINE int64_t tile_rows() const {
    const int64_t run = is_one_run() ? (strip_rows - 1) * line() + strip_columns : strip_columns;
    return run < kTileRows ? run : kTileRows;
  }

  FXQ_INLINE int64_t input_bytes() const { return input_bytes(strip_rows, strip_columns); }

  // Scratch memory: the accumulators' initial values, which of them are known, offsets of K blocks, the pointers of
  // Conv2dArgs (where windows are gathered), and the input of a strip.
  FXQ_INLINE int64_t initial_bytes() const { return all_n_blocks() * kNBlockPanels * kPanelGroupBytes; }
  FXQ_INLINE int64_t known_bytes() const { return (all_n_blocks() + kCacheLine - 1) / kCacheLine * kCacheLine; }
  FXQ_INLINE int64_t offset_bytes() const { return tile_k_blocks() * static_cast<int64_t>(sizeof(int64_t)); }
  FXQ_INLINE int64_t gather_bytes() const { return input == TileInput::kGathered ? Conv2dArgs::scratch() : 0; }
  FXQ_INLINE int64_t scratch() const {
    return initial_bytes() + known_bytes() + offset_bytes() + gather_bytes() + input_bytes() + 2 * kCacheLine;
  }

 private:
  // Bytes of the copy for a strip. Tiles read further than its last pixel: rows that are no pixels, and whole K groups.
  FXQ_INLINE int64_t input_bytes(int64_t some_rows, int64_t some_columns) const {
    const int64_t beyond = kTileRows * shape.stride_width * shape.in_channels + kTileBytes;
    if (input == TileInput::kInPlace) return 0;
    if (input == TileInput::kGathered) return (some_columns + kTileRows) * k_size();
    return shape.kernel_planes * read_rows(some_rows) * read_columns(some_columns) * shape.in_channels + beyond;
  }

  // Pixel i of the result reads pixel i of x, so all are one row.
  void join_pixels() {
    const int64_t pixels = shape.out_pixels();
    shape.batch = shape.planes = shape.height = shape.out_planes = shape.out_height = 1;
    shape.width = shape.out_width = pixels;
  }

  TileInput choose_input() const {
    const ConvShape& s = shape;
    const bool is_run = s.dilation_width == 1 || s.kernel_width == 1;  // a row of taps is contiguous
    if (s.has_few_channels() && !is_run) return TileInput::kGathered;
    const bool fits = s.front == 0 && s.top == 0 && s.left == 0 &&
                      (s.out_planes - 1) * s.stride_planes + (s.kernel_planes - 1) * s.dilation_planes < s.planes &&
                      read_rows(s.out_height) <= s.height && read_columns(s.out_width) <= s.width;
    if (fits && s.k_block_bytes() % kKGroup == 0) return TileInput::kInPlace;
    if (s.stride_width > read_columns(1)) return TileInput::kGathered;  // pixels between two windows
    // Copied pixels are few where windows overlap, or follow each other closely.
    constexpr double kMore = 2;
    const int64_t some = s.out_height < 8 ? s.out_height : 8;
    const double copied = static_cast<double>(s.kernel_planes) * static_cast<double>(read_rows(some)) *
                          static_cast<double>(read_columns(s.out_width)) * static_cast<double>(s.in_channels);
    const double gathered = static_cast<double>(some) * static_cast<double>(s.out_width) *
                            static_cast<double>(k_size()) * static_cast<double>(s.group_bundles());
    return copied <= kMore * gathered ? TileInput::kCopied : TileInput::kGathered;
  }

  // Chooses strips of some hundred pixels whose input stays in the L2 cache: fewer where threads would have nothing to do.
  void choose_strips(int64_t threads) {
    constexpr int64_t kPixels = 256, kFewest = 2 * kTileBlockRows, kNear = 512 << 10;
    const auto parts_of = [](int64_t size, int64_t most) {  // of about the same size
      const int64_t count = (size + most - 1) / most;
      return (size + count - 1) / count;
    };
    strip_columns = columns;
    if (columns >= 2 * kPixels) strip_columns = rounded(parts_of(columns, kPixels));
    strip_rows = strip_columns < columns ? 1 : parts_of(rows, kPixels / columns > 1 ? kPixels / columns : 1);
    const auto is_large = [&] {
      const bool idle = tasks() < 2 * threads && strip_rows * strip_columns > kFewest;
      return idle || input_bytes(strip_rows, strip_columns) > kNear;
    };
    while (strip_rows > 1 && is_large()) strip_rows = (strip_rows + 1) / 2;
    while (strip_rows == 1 && strip_columns > kTileBlockRows && is_large()) {
      strip_columns = rounded((strip_columns + 1) / 2);
    }
  }
  static FXQ_INLINE int64_t rounded(int64_t pixels) {
    return (pixels + kTileBlockRows - 1) / kTileBlockRows * kTileBlockRows;
  }
};

}  // namespace fxquant

// Runs the tasks begin <= i < end of a convolution that is not depthwise.
FXQ_DECLARE_TILE_LOOP(conv_tiles_loop, (const TileConvArgs& args, int64_t begin, int64_t end, uint8_t* scratch))
