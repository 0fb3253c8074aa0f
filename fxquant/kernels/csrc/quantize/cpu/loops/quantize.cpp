// Quantization: q = clamp(round(x / scale) + zero_point), in the dtype of the integers.
//
// A dense tensor is seen as [outer, channels, inner] in the order of its memory (common/layout.h). A task is a range of its
// elements.
//
//   for range of elements in tasks:         # in parallel
//       for stretch of one channel:         # qparams are constants of the loop (quantize_run.h)
//           for element: round, clamp
//       for row of channels side by side:   # inner == 1
//           for element: round and clamp with the qparams of its channel
//
// An image whose channels are planes, and whose result is channels_last, has a loop nest of its own:
//
//   for image, kPixels pixels in tasks:     # in parallel
//       for kWidth channels:
//           for channel: quantize its stretch of the plane
//           transpose the stretches to pixels
//
// float16 and bfloat16 are converted in blocks of kBlock floats that stay in the L1 cache.
#include "quantize/cpu/loops/quantize.h"

#include <cstring>

#include "cpu/loops/loop_pragmas.h"
#include "quantize/cpu/loops/quantize_run.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

template <typename Q, typename Real>
void row(const Real* FXQ_RESTRICT x, Q* FXQ_RESTRICT q, int64_t count, const ChannelQParams<Real> g) {
  for (int64_t i = 0; i < count; ++i) {
    const Affine<Real> a = g.at(i);
    q[i] = to_integer<Q>(saturate(round_to_quantized(x[i], a), a));
  }
}

template <typename Q, Float type>
void row(const Short<type>* x, Q* q, int64_t count, const ChannelQParams<float> g) {
  float real[kBlock];
  for_each_block(count, [&](int64_t i, int64_t n) {
    widen(x + i, real, n);
    row(real, q + i, n, g.from(i));
  });
}

template <typename T, typename Q, typename Real>
void quantize_range(const QuantizeArgs& args, const ChannelQParams<Real>& qparams, int64_t begin, int64_t end) {
  const T* x = static_cast<const T*>(args.x);
  Q* q = static_cast<Q*>(args.q);
  for_each_channel(
      args.layout, begin, end, [&](int64_t i, int64_t n, int64_t c) { quantize_run(x + i, q + i, n, qparams.at(c)); },
      [&](int64_t i, int64_t n, int64_t c) { row(x + i, q + i, n, qparams.from(c)); });
}

template <typename Q>
void interleave3(const Q* FXQ_RESTRICT planes, Q* FXQ_RESTRICT q, int64_t pixels) {
  for (int64_t p = 0; p < pixels; ++p) {
    q[3 * p] = planes[p];
    q[3 * p + 1] = planes[kPixels + p];
    q[3 * p + 2] = planes[2 * kPixels + p];
  }
}

template <typename Q>
void transpose(const Q* FXQ_RESTRICT planes, Q* FXQ_RESTRICT q, int64_t pixels, int64_t width, int64_t stride) {
  for (int64_t p = 0; p < pixels; ++p) {
    for (int64_t c = 0; c < width; ++c) q[p * stride + c] = planes[c * kPixels + p];
  }
}

// kCount bytes of each pixel, one of each plane, in a word that is stored at once: the lowest byte lies first.
template <typename Word>
void transpose_words(const uint8_t* FXQ_RESTRICT planes, uint8_t* FXQ_RESTRICT q, int64_t pixels, int64_t stride) {
  constexpr int kCount = sizeof(Word);
  Word words[kPixels];
  for (int64_t p = 0; p < pixels; ++p) {
    Word word = 0;
    FXQ_UNROLL
    for (int c = 0; c < kCount; ++c) word |= static_cast<Word>(planes[c * kPixels + p]) << (8 * c);
    words[p] = word;
  }
  for (int64_t p = 0; p < pixels; ++p) std::memcpy(q + p * stride, words + p, sizeof(Word));
}

// As many bytes as fit words of eight and of four, then byte by byte.
inline void transpose_bytes(const uint8_t* planes, uint8_t* q, int64_t pixels, int64_t width, int64_t stride) {
  int64_t c = 0;
  for (; c + 8 <= width; c += 8) transpose_words<uint64_t>(planes + c * kPixels, q + c, pixels, stride);
  for (; c + 4 <= width; c += 4) transpose_words<uint32_t>(planes + c * kPixels, q + c, pixels, stride);
  if (c < width) transpose(planes + c * kPixels, q + c, pixels, width - c, stride);
}

// Quantizes kPixels of up to kWidth channels into a buffer that stays in the L1 cache, then transposes it.
template <typename T, typename Q, typename Real>
void quantize_image(const QuantizeImageArgs& args, const ChannelQParams<Real>& qparams, int64_t begin, int64_t end) {
  constexpr int64_t kWidth = 32;
  Q planes[kWidth * kPixels];
  const Layout& layout = args.quantize.layout;
  const int64_t tasks = (layout.inner + kPixels - 1) / kPixels;  // of one image
  for (int64_t task = begin; task < end; ++task) {
    const int64_t image = task / tasks;
    const int64_t first = task % tasks * kPixels;
    const int64_t pixels = layout.inner - first < kPixels ? layout.inner - first : kPixels;
    const T* x = static_cast<const T*>(args.quantize.x) + image * layout.channels * layout.inner + first;
    Q* q = static_cast<Q*>(args.quantize.q) + (image * layout.inner + first) * layout.channels;
    for (int64_t c0 = 0; c0 < layout.channels; c0 += kWidth) {
      const int64_t width = layout.channels - c0 < kWidth ? layout.channels - c0 : kWidth;
      for (int64_t c = 0; c < width; ++c) {
        quantize_run(x + (c0 + c) * layout.inner, planes + c * kPixels, pixels, qparams.at(args.per_channel ? c0 + c : 0));
      }
      if (layout.channels == 3) {
        interleave3(planes, q, pixels);
      } else if constexpr (sizeof(Q) == 1) {
        const uint8_t* bytes = reinterpret_cast<const uint8_t*>(planes);
        transpose_bytes(bytes, reinterpret_cast<uint8_t*>(q + c0), pixels, width, layout.channels);
      } else {
        transpose(planes, q + c0, pixels, width, layout.channels);
      }
    }
  }
}

// FlatLoop or ImageLoop, called with its types.
struct FlatLoop {
  template <typename T, typename Q, typename Real>
  static void go(const QuantizeArgs& args, const ChannelQParams<Real>& qparams, int64_t begin, int64_t end) {
    quantize_range<T, Q>(args, qparams, begin, end);
  }
};

struct ImageLoop {
  template <typename T, typename Q, typename Real>
  static void go(const QuantizeImageArgs& args, const ChannelQParams<Real>& qparams, int64_t begin, int64_t end) {
    quantize_image<T, Q>(args, qparams, begin, end);
  }
};

template <typename F, typename Q, typename Args>
void with_source(const QuantizeArgs& types, const Args& args, int64_t begin, int64_t end) {
  switch (types.from) {
    case Float::kFloat: return F::template go<float, Q>(args, types.qparams, begin, end);
    case Float::kDouble: return F::template go<double, Q>(args, types.double_qparams, begin, end);
    case Float::kHalf: return F::template go<Half, Q>(args, types.qparams, begin, end);
    case Float::kBFloat16: return F::template go<BFloat16, Q>(args, types.qparams, begin, end);
  }
}

template <typename F, typename Args>
void with_types(const QuantizeArgs& types, const Args& args, int64_t begin, int64_t end) {
  switch (types.to) {
    case Integer::kUint8: return with_source<F, uint8_t>(types, args, begin, end);
    case Integer::kInt8: return with_source<F, int8_t>(types, args, begin, end);
    case Integer::kInt16: return with_source<F, int16_t>(types, args, begin, end);
    case Integer::kInt32: return with_source<F, int32_t>(types, args, begin, end);
  }
}

}  // namespace

void quantize_loop(const QuantizeArgs& args, int64_t begin, int64_t end) {
  with_types<FlatLoop>(args, args, begin, end);
}

void quantize_image_loop(const QuantizeImageArgs& args, int64_t begin, int64_t end) {
  with_types<ImageLoop>(args.quantize, args, begin, end);
}

}  // namespace FXQ_ISA
}  // namespace fxquant
