#include "conv2d.h"

#include "products.h"
#include "vector.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

constexpr int64_t kCopy = 32;  // bytes copied at once, where a run is shorter

// Where the pieces of a tile's rows lie: [pieces][kTileRows].
struct Pieces {
  const uint8_t* at[kMaxTaps * kTileRows];
  uint8_t gathered[kTileRows * (kMaxTaps * kFewDepth + kCopy)] = {};
};

// The corner of a window, in pixels of x.
struct Window {
  int64_t image, top, left;

  Window(const ConvShape& s, int64_t row) {
    const int64_t line = row / s.out_width;
    image = line / s.out_height;
    top = line % s.out_height * s.stride_height - s.top;
    left = row % s.out_width * s.stride_width - s.left;
  }
};

// Copies the window of one row of the result.
void gather(const ConvArgs& a, const Window& window, uint8_t* to) {
  const ConvShape& s = a.shape;
  const uint8_t* end = a.x + s.batch * s.height * s.width * s.depth;
  const int64_t run = s.kernel_width * s.depth;
  const bool is_run = s.dilation_width == 1 && window.left >= 0 && window.left + s.kernel_width <= s.width;
  for (int64_t i = 0; i < s.kernel_height; ++i) {
    const int64_t h = window.top + i * s.dilation_height;
    const bool inside = h >= 0 && h < s.height;
    const uint8_t* line = a.x + (window.image * s.height + h) * s.width * s.depth;
    if (inside && is_run) {
      const uint8_t* from = line + window.left * s.depth;
      if (run <= kCopy && end - from >= kCopy) {
        std::memcpy(to, from, kCopy);  // what is too much is written over next
      } else {
        std::memcpy(to, from, run);
      }
      to += run;
      continue;
    }
    for (int64_t j = 0; j < s.kernel_width; ++j) {
      const int64_t w = window.left + j * s.dilation_width;
      const uint8_t* from = inside && w >= 0 && w < s.width ? line + w * s.depth : a.outside;
      for (int64_t k = 0; k < s.depth; ++k) *to++ = from[k];
    }
  }
}

void find_pieces(const ConvArgs& a, int64_t first, int64_t count, Pieces& pieces) {
  const ConvShape& s = a.shape;
  if (s.is_product()) {
    for (int64_t r = 0; r < count; ++r) pieces.at[r] = a.x + (first + r) * s.depth;
    return;
  }
  const int64_t reach = (s.kernel_width - 1) * s.dilation_width;
  for (int64_t r = 0; r < count; ++r) {
    const Window window(s, first + r);
    const uint8_t** at = pieces.at + r;
    if (s.gathers()) {
      uint8_t* to = pieces.gathered + r * (s.quads() * kQuad + kCopy);
      gather(a, window, to);
      *at = to;
      continue;
    }
    for (int64_t i = 0; i < s.kernel_height; ++i) {
      const int64_t h = window.top + i * s.dilation_height;
      const bool inside = h >= 0 && h < s.height;
      const int64_t left = (window.image * s.height + h) * s.width + window.left;
      if (inside && window.left >= 0 && window.left + reach < s.width) {
        const uint8_t* pixel = a.x + left * s.depth;
        for (int64_t j = 0; j < s.kernel_width; ++j, at += kTileRows, pixel += s.dilation_width * s.depth) *at = pixel;
        continue;
      }
      for (int64_t j = 0; j < s.kernel_width; ++j, at += kTileRows) {
        const int64_t w = window.left + j * s.dilation_width;
        *at = inside && w >= 0 && w < s.width ? a.x + (left + j * s.dilation_width) * s.depth : a.outside;
      }
    }
  }
}

#if defined(__AVX512BW__)
// From the sums of 16 channels to bytes of the result, or to real numbers.
struct Epilogue {
  const ConvArgs& a;
  const __m512 inv_scale = _mm512_set1_ps(a.grid.inv_scale);
  const __m512 low = _mm512_set1_ps(a.grid.low);
  const __m512 high = _mm512_set1_ps(a.grid.high);
  const __m512 shift = _mm512_set1_ps(kRoundingShift);
  const __m512i zero_point = _mm512_set1_epi32(a.grid.zero_point);

  explicit Epilogue(const ConvArgs& args) : a(args) {}

  // What requantize() of math/requantize.h does; max and min give their second operand for NaN, as its clamps do.
  template <typename AnySums>
  void store(const AnySums& sums, int64_t row, int64_t channel) const {
    const int64_t left = a.shape.channels - channel;
    const __mmask16 mask = static_cast<__mmask16>(left >= 16 ? 0xffff : (1 << left) - 1);
    const __m512i sum = _mm512_add_epi32(total(sums), _mm512_maskz_loadu_epi32(mask, a.start + channel));
    __m512 real = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_maskz_loadu_ps(mask, a.scale + channel));
    real = _mm512_add_ps(real, _mm512_maskz_loadu_ps(mask, a.bias + channel));
    const int64_t at = row * a.shape.channels + channel;
    if (a.residual != nullptr) {
      const __m128i bytes = _mm_maskz_loadu_epi8(mask, a.residual + at);
      const __m512i stored = a.residual_signed ? _mm512_cvtepi8_epi32(bytes) : _mm512_cvtepu8_epi32(bytes);
      const __m512i steps = _mm512_sub_epi32(stored, _mm512_set1_epi32(a.residual_zero_point));
      real = _mm512_add_ps(real, _mm512_mul_ps(_mm512_cvtepi32_ps(steps), _mm512_set1_ps(a.residual_scale)));
    }
    if (a.real != nullptr) {
      _mm512_mask_storeu_ps(a.real + at, mask, real);
      return;
    }
    const __m512 steps = _mm512_min_ps(_mm512_max_ps(_mm512_mul_ps(real, inv_scale), low), high);
    const __m512i bits = _mm512_castps_si512(_mm512_add_ps(steps, shift));
    const __m128i bytes = _mm512_cvtepi32_epi8(_mm512_add_epi32(bits, zero_point));
    if (left >= 16) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(a.y + at), bytes);
    } else {
      _mm_mask_storeu_epi8(a.y + at, mask, bytes);
    }
  }
};
#else
struct Epilogue {
  const ConvArgs& a;

  explicit Epilogue(const ConvArgs& args) : a(args) {}

  template <typename AnySums>
  void store(const AnySums& of, int64_t row, int64_t channel) const {
    int32_t sums[kPanel];
    total(of, sums);
    const int64_t left = a.shape.channels - channel;
    if (left >= kPanel) {
      finish(sums, row, channel, kPanel);
    } else {
      finish(sums, row, channel, left);
    }
  }

  void finish(const int32_t* sums, int64_t row, int64_t channel, int64_t count) const {
    const int64_t at = row * a.shape.channels + channel;
    float real[kPanel];
    for (int64_t c = 0; c < count; ++c) {
      real[c] = static_cast<float>(sums[c] + a.start[channel + c]) * a.scale[channel + c] + a.bias[channel + c];
    }
    if (a.residual != nullptr) {
      const int32_t flip = a.residual_signed ? 0x80 : 0;  // (q ^ 0x80) - 128 is q as an int8
      for (int64_t c = 0; c < count; ++c) {
        real[c] += dequantize((a.residual[at + c] ^ flip) - flip, a.residual_scale, a.residual_zero_point);
      }
    }
    if (a.real != nullptr) {
      for (int64_t c = 0; c < count; ++c) a.real[at + c] = real[c];
      return;
    }
    FXQ_INDEPENDENT
    for (int64_t c = 0; c < count; ++c) a.y[at + c] = requantize(real[c], a.grid);
  }
};
#endif

// R rows from `row` on, V times 16 channels from `channel` on.
template <int R, int V, bool kSigned>
void tile(const ConvArgs& a, const uint8_t* const* pieces, int64_t row, int64_t channel) {
  const int64_t count = a.shape.pieces();
  const int64_t panel = count * a.shape.quads() * kPanel * kQuad;
  const int64_t rest = a.shape.gathers() ? 0 : a.shape.depth % kQuad;  // what is gathered may be read further
  const int64_t whole = a.shape.quads() - (rest != 0);
  const int8_t* w = a.weight + channel / kPanel * panel;
  Sums sums[R][V];
  for (int64_t i = 0; i < count; ++i, pieces += kTileRows) {
    const uint8_t* x[R];
    for (int r = 0; r < R; ++r) x[r] = pieces[r];
    for (int64_t k = 0; k < whole; ++k, w += kPanel * kQuad) {
      Weights weights[V];
      FXQ_UNROLL
      for (int v = 0; v < V; ++v) weights[v] = load_weights(w + v * panel);
      FXQ_UNROLL
      for (int r = 0; r < R; ++r) {
        const Pixel pixel = load_pixel<kSigned>(x[r] + k * kQuad);
        FXQ_UNROLL
        for (int v = 0; v < V; ++v) add_products(sums[r][v], pixel, weights[v]);
      }
    }
    if (rest != 0) {  // x may end here
      FXQ_UNROLL
      for (int r = 0; r < R; ++r) {
        uint8_t quad[kQuad] = {};
        for (int64_t k = 0; k < rest; ++k) quad[k] = x[r][whole * kQuad + k];
        const Pixel pixel = load_pixel<kSigned>(quad);
        FXQ_UNROLL
        for (int v = 0; v < V; ++v) add_products(sums[r][v], pixel, load_weights(w + v * panel));
      }
      w += kPanel * kQuad;
    }
  }
  const Epilogue epilogue(a);
  FXQ_UNROLL
  for (int r = 0; r < R; ++r) {
    FXQ_UNROLL
    for (int v = 0; v < V; ++v) epilogue.store(sums[r][v], row + r, channel + v * kPanel);
  }
}

// The same for a depthwise convolution; the V times 16 channels are all there if kWhole.
template <int R, int V, bool kSigned, bool kWhole>
void depthwise_tile(const ConvArgs& a, const uint8_t* const* pieces, int64_t row, int64_t channel) {
  const int64_t count = a.shape.taps();
  const int64_t left = a.shape.channels - channel;
  const int64_t panel = count * kPanel * kQuad;
  const int8_t* w = a.weight + channel / kPanel * panel;
  LaneSums sums[R][V];
  for (int64_t i = 0; i < count; ++i, pieces += kTileRows, w += kPanel * kQuad) {
    FXQ_UNROLL
    for (int v = 0; v < V; ++v) {
      const LaneWeights weights = load_lane_weights(w + v * panel);
      FXQ_UNROLL
      for (int r = 0; r < R; ++r) {
        add_lanes(sums[r][v], load_lanes<kSigned, kWhole>(pieces[r] + channel + v * kPanel, left), weights);
      }
    }
  }
  const Epilogue epilogue(a);
  FXQ_UNROLL
  for (int r = 0; r < R; ++r) {
    FXQ_UNROLL
    for (int v = 0; v < V; ++v) epilogue.store(sums[r][v], row + r, channel + v * kPanel);
  }
}

using Tile = void (*)(const ConvArgs&, const uint8_t* const*, int64_t, int64_t);

// The tile of R rows or fewer, and of V vectors or fewer.
template <int R, int V, bool kSigned>
Tile find_tile(int64_t rows, int64_t vectors) {
  if constexpr (R > 1) {
    if (rows < R) return find_tile<R - 1, V, kSigned>(rows, vectors);
  }
  if constexpr (V > 1) {
    if (vectors < V) return find_tile<R, V - 1, kSigned>(rows, vectors);
  }
  return tile<R, V, kSigned>;
}

template <int R, int V, bool kSigned, bool kWhole>
Tile find_depthwise_tile(int64_t rows) {
  if constexpr (R > 1) {
    if (rows < R) return find_depthwise_tile<R - 1, V, kSigned, kWhole>(rows);
  }
  return depthwise_tile<R, V, kSigned, kWhole>;
}

template <bool kSigned>
void walk(const ConvArgs& a, int64_t begin, int64_t end) {
  const int64_t row_tiles = a.row_tiles();
  const int64_t blocks = a.blocks();
  const int64_t most = a.column();
  const int64_t panels = a.shape.panels();
  const int64_t width = (panels + blocks - 1) / blocks;  // panels of a block
  Pieces pieces;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t column = i / (most * blocks);
    const int64_t inside = i - column * most * blocks;
    const int64_t left = row_tiles - column * most;
    const int64_t height = left < most ? left : most;
    const int64_t block = inside / height;
    const int64_t first = (column * most + inside % height) * kTileRows;
    const int64_t rest = a.shape.rows() - first;
    const int64_t count = rest < kTileRows ? rest : kTileRows;
    find_pieces(a, first, count, pieces);
    const int64_t last = (block + 1) * width < panels ? (block + 1) * width : panels;
    if (a.shape.depthwise) {
      int64_t p = block * width;
      const int64_t whole = a.shape.channels / kPanel < last ? a.shape.channels / kPanel : last;
      for (; p + kVectors <= whole; p += kVectors) {
        find_depthwise_tile<kTileRows, kVectors, kSigned, true>(count)(a, pieces.at, first, p * kPanel);
      }
      for (; p < whole; ++p) find_depthwise_tile<kTileRows, 1, kSigned, true>(count)(a, pieces.at, first, p * kPanel);
      if (p < last) find_depthwise_tile<kTileRows, 1, kSigned, false>(count)(a, pieces.at, first, p * kPanel);
      continue;
    }
    for (int64_t p = block * width; p < last; p += kVectors) {
      for (int64_t r = 0; r < count; r += kRows) {
        find_tile<kRows, kVectors, kSigned>(count - r, last - p)(a, pieces.at + r, first + r, p * kPanel);
      }
    }
  }
}

}  // namespace

void conv_loop(const ConvArgs& args, int64_t begin, int64_t end) {
  args.x_signed ? walk<true>(args, begin, end) : walk<false>(args, begin, end);
}

}  // namespace FXQ_ISA
}  // namespace fxquant
