// Fake quantization: y = dequantize(clamp(round(x / scale) + zero_point)), and a mask of where the gradient passes.
//
// A dense tensor is seen as [outer, channels, inner] in the order of its memory (common/layout.h). A task is a range of its
// elements, which need not be whole rows.
//
//   for range of elements in tasks:         # in parallel
//       for stretch of one channel:         # inner > 1, or one channel: qparams are constants of the loop
//           for element: round, clamp, dequantize
//       for row of channels side by side:   # inner == 1
//           for kColumns channels:          # their qparams stay in registers while all rows are taken
//               for row, element: round, clamp, dequantize
//
// float and double are computed as they are. float16 is converted in blocks of kBlock floats that stay in the L1 cache.
// bfloat16 is taken in pairs (pairs.h): a 32-bit word holds two elements, and no lane changes its width.
#include "fake_quantize/cpu/loops/fake_quantize.h"

#include "cpu/loops/rows.h"
#include "fake_quantize/cpu/loops/pairs.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

// G is ChannelQParams, or TensorQParams for a stretch of one channel.
template <typename Real, typename G>
FXQ_ONE_LOOP void run(const Real* FXQ_RESTRICT x, Real* FXQ_RESTRICT y, int64_t count, const G g) {
  for (int64_t i = 0; i < count; ++i) {
    const Affine<Real> a = g.at(i);
    y[i] = dequantize(saturate(round_to_quantized(x[i], a), a), a);
  }
}

template <typename Real, typename G>
FXQ_ONE_LOOP void run_mask(const Real* FXQ_RESTRICT x, Real* FXQ_RESTRICT y, bool* FXQ_RESTRICT mask, int64_t count,
                           const G g) {
  for (int64_t i = 0; i < count; ++i) {
    const Affine<Real> a = g.at(i);
    const Real q = round_to_quantized(x[i], a);
    mask[i] = inside(q, a);
    y[i] = dequantize(saturate(q, a), a);
  }
}

// Takes kColumns columns of rows that are `row_size` elements long. Their qparams stay in registers.
FXQ_ONE_LOOP void run_columns(const float* FXQ_RESTRICT x, float* FXQ_RESTRICT y, int64_t rows, int64_t row_size,
                              const ChannelQParams<float> g) {
  for (int64_t r = 0; r < rows; ++r, x += row_size, y += row_size) {
    FXQ_INDEPENDENT
    for (int64_t i = 0; i < kColumns; ++i) {
      const Affine<float> a = g.at(i);
      y[i] = dequantize(saturate(round_to_quantized(x[i], a), a), a);
    }
  }
}

FXQ_ONE_LOOP void run_columns_mask(const float* FXQ_RESTRICT x, float* FXQ_RESTRICT y, bool* FXQ_RESTRICT mask,
                                   int64_t rows, int64_t row_size, const ChannelQParams<float> g) {
  for (int64_t r = 0; r < rows; ++r, x += row_size, y += row_size, mask += row_size) {
    FXQ_INDEPENDENT
    for (int64_t i = 0; i < kColumns; ++i) {
      const Affine<float> a = g.at(i);
      const float q = round_to_quantized(x[i], a);
      mask[i] = inside(q, a);
      y[i] = dequantize(saturate(q, a), a);
    }
  }
}

// Fake-quantizes both elements of a pair.
inline Pair rounded(Pair value, const Affine<float>& a, const Affine<float>& b) {
  return {dequantize(saturate(round_to_quantized(value.first, a), a), a),
          dequantize(saturate(round_to_quantized(value.second, b), b), b)};
}

// `first` and `second` are the qparams of the first and of the second element of each pair.
template <typename G>
struct Pairs {
  const BFloat16* x;
  BFloat16* y;
  G first;
  G second;

  void operator()(int64_t p) const {
    store_pair(rounded(pair_of(word_at(x + 2 * p)), first.at(p), second.at(p)), y + 2 * p);
  }
};

template <typename G>
struct MaskedPairs {
  const BFloat16* x;
  BFloat16* y;
  bool* mask;
  G first;
  G second;

  void operator()(int64_t p) const {
    const Pair value = pair_of(word_at(x + 2 * p));
    const Affine<float> a = first.at(p);
    const Affine<float> b = second.at(p);
    const float lower = round_to_quantized(value.first, a);
    const float upper = round_to_quantized(value.second, b);
    const uint16_t both = static_cast<uint16_t>((inside(lower, a) ? 1u : 0u) | (inside(upper, b) ? 0x100u : 0u));
    memcpy(mask + 2 * p, &both, sizeof both);
    store_pair({dequantize(saturate(lower, a), a), dequantize(saturate(upper, b), b)}, y + 2 * p);
  }
};

FXQ_ONE_LOOP void run_pair_columns(const BFloat16* FXQ_RESTRICT x, BFloat16* FXQ_RESTRICT y, int64_t rows,
                                   int64_t row_size, const ChannelQParams<float> first,
                                   const ChannelQParams<float> second) {
  for (int64_t r = 0; r < rows; ++r, x += row_size, y += row_size) {
    FXQ_INDEPENDENT
    for (int64_t p = 0; p < kColumns / 2; ++p) {
      store_pair(rounded(pair_of(word_at(x + 2 * p)), first.at(p), second.at(p)), y + 2 * p);
    }
  }
}

template <typename G>
FXQ_ONE_LOOP void run_pairs(const BFloat16* x, BFloat16* y, int64_t pairs, const G first, const G second) {
  for_each_in_row(pairs, Pairs<G>{x, y, first, second});
}

template <typename G>
FXQ_ONE_LOOP void run_pairs_mask(const BFloat16* x, BFloat16* y, bool* mask, int64_t pairs, const G first,
                                 const G second) {
  for_each_in_row(pairs, MaskedPairs<G>{x, y, mask, first, second});
}

template <typename Real, typename G>
void elements(const Real* x, Real* y, bool* mask, int64_t count, const G& g) {
  mask ? run_mask(x, y, mask, count, g) : run(x, y, count, g);
}

template <typename G>
void elements(const Half* x, Half* y, bool* mask, int64_t count, const G& g) {
  float real[kBlock];
  float result[kBlock];
  for_each_block(count, [&](int64_t i, int64_t n) {
    widen(x + i, real, n);
    elements(real, result, mask ? mask + i : nullptr, n, g.from(i));
    narrow(result, y + i, n);
  });
}

template <typename G>
void elements(const BFloat16* x, BFloat16* y, bool* mask, int64_t count, const G& first, const G& second,
              const Affine<float>& of_last) {
  mask ? run_pairs_mask(x, y, mask, count / 2, first, second) : run_pairs(x, y, count / 2, first, second);
  if (count % 2 != 0) {
    const int64_t last = count - 1;
    float real = to_float(x[last]);
    elements(&real, &real, mask ? mask + last : nullptr, 1, TensorQParams<float>{of_last});
    from_float(real, y[last]);
  }
}

void elements(const BFloat16* x, BFloat16* y, bool* mask, int64_t count, const TensorQParams<float>& g) {
  elements(x, y, mask, count, g, g, g.affine);
}

void row(const FakeQuantizeArgs& args, const ChannelQParams<float>& qparams, const float* x, float* y, bool* mask,
         int64_t count, int64_t c) {
  const int64_t row_size = args.channels;
  if (c % row_size != 0 || row_size % kColumns != 0 || count % row_size != 0) {
    return elements(x, y, mask, count, qparams.from(c));
  }
  for (int64_t i = 0; i < row_size; i += kColumns) {
    mask ? run_columns_mask(x + i, y + i, mask + i, count / row_size, row_size, qparams.from(i))
         : run_columns(x + i, y + i, count / row_size, row_size, qparams.from(i));
  }
}

template <typename T, typename Real>
void row(const FakeQuantizeArgs&, const ChannelQParams<Real>& qparams, const T* x, T* y, bool* mask, int64_t count,
         int64_t c) {
  elements(x, y, mask, count, qparams.from(c));
}

void row(const FakeQuantizeArgs& args, const ChannelQParams<float>&, const BFloat16* x, BFloat16* y, bool* mask,
         int64_t count, int64_t c) {
  const PairedQParams<float>& g = args.paired;
  if (mask == nullptr && c % args.channels == 0 && args.channels % kColumns == 0 && count % args.channels == 0) {
    for (int64_t i = 0; i < args.channels; i += kColumns) {
      run_pair_columns(x + i, y + i, count / args.channels, args.channels, g.even.from(i / 2), g.odd.from(i / 2));
    }
    return;
  }
  elements(x, y, mask, count, g.every_second_from(c), g.every_second_from(c + 1), g.at(c + count - 1));
}

template <typename T, typename Real>
void fake_quantize_range(const FakeQuantizeArgs& args, const ChannelQParams<Real>& qparams, int64_t begin,
                         int64_t end) {
  const T* x = static_cast<const T*>(args.x);
  T* y = static_cast<T*>(args.y);
  bool* mask = args.mask;
  for_each_channel(
      args.layout, begin, end,
      [&](int64_t i, int64_t n, int64_t c) {
        elements(x + i, y + i, mask ? mask + i : nullptr, n, TensorQParams<Real>{qparams.at(c)});
      },
      [&](int64_t i, int64_t n, int64_t c) { row(args, qparams, x + i, y + i, mask ? mask + i : nullptr, n, c); });
}

// Selects the incoming gradient on its bits, so that a clipped element gets 0 whatever comes in. Mask bytes are 0 or 1.
// It is a bitwise and in a free function: a conditional load, or pointers that may alias, would not vectorise (6 times
// slower).
template <typename Bits>
void select(const Bits* FXQ_RESTRICT grad, const uint8_t* FXQ_RESTRICT mask, Bits* FXQ_RESTRICT result,
            int64_t count) {
  for (int64_t i = 0; i < count; ++i) result[i] = grad[i] & static_cast<Bits>(-static_cast<Bits>(mask[i]));
}

template <typename Bits>
void backward_range(const FakeQuantizeBackwardArgs& args, int64_t begin, int64_t end) {
  select(static_cast<const Bits*>(args.grad) + begin, reinterpret_cast<const uint8_t*>(args.mask) + begin,
         static_cast<Bits*>(args.result) + begin, end - begin);
}

}  // namespace

void fake_quantize_loop(const FakeQuantizeArgs& args, int64_t begin, int64_t end) {
  switch (args.type) {
    case Float::kFloat: return fake_quantize_range<float>(args, args.qparams, begin, end);
    case Float::kDouble: return fake_quantize_range<double>(args, args.double_qparams, begin, end);
    case Float::kHalf: return fake_quantize_range<Half>(args, args.qparams, begin, end);
    case Float::kBFloat16: return fake_quantize_range<BFloat16>(args, args.qparams, begin, end);
  }
}

void fake_quantize_backward_loop(const FakeQuantizeBackwardArgs& args, int64_t begin, int64_t end) {
  switch (args.type) {
    case Float::kFloat: return backward_range<uint32_t>(args, begin, end);
    case Float::kDouble: return backward_range<uint64_t>(args, begin, end);
    case Float::kHalf:
    case Float::kBFloat16: return backward_range<uint16_t>(args, begin, end);
  }
}

}  // namespace FXQ_ISA
}  // namespace fxquant
