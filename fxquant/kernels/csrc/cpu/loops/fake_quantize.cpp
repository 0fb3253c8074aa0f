#include "fake_quantize.h"

#include "pairs.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

// G: Grids, or OneGrid for a stretch of one channel.
template <typename Real, typename G>
FXQ_ONE_LOOP void run(const Real* FXQ_RESTRICT x, Real* FXQ_RESTRICT y, int64_t count, const G g) {
  for (int64_t i = 0; i < count; ++i) {
    const Affine<Real> a = g.at(i);
    y[i] = from_grid(saturate(to_grid(x[i], a), a), a);
  }
}

template <typename Real, typename G>
FXQ_ONE_LOOP void run_mask(const Real* FXQ_RESTRICT x, Real* FXQ_RESTRICT y, bool* FXQ_RESTRICT mask, int64_t count,
                           const G g) {
  for (int64_t i = 0; i < count; ++i) {
    const Affine<Real> a = g.at(i);
    const Real step = to_grid(x[i], a);
    mask[i] = inside(step, a);
    y[i] = from_grid(saturate(step, a), a);
  }
}

template <typename G>
FXQ_ONE_LOOP void run_pairs(const BFloat16* FXQ_RESTRICT x, BFloat16* FXQ_RESTRICT y, int64_t pairs, const G g) {
  for (int64_t i = 0; i < 2 * pairs; i += 2) {
    const Pair value = pair_of(word_at(x + i));
    const Affine<float> a = g.at(i);
    const Affine<float> b = g.at(i + 1);
    store_pair({from_grid(saturate(to_grid(value.first, a), a), a),
                from_grid(saturate(to_grid(value.second, b), b), b)},
               y + i);
  }
}

template <typename G>
FXQ_ONE_LOOP void run_pairs_mask(const BFloat16* FXQ_RESTRICT x, BFloat16* FXQ_RESTRICT y, bool* FXQ_RESTRICT mask,
                                 int64_t pairs, const G g) {
  for (int64_t i = 0; i < 2 * pairs; i += 2) {
    const Pair value = pair_of(word_at(x + i));
    const Affine<float> a = g.at(i);
    const Affine<float> b = g.at(i + 1);
    const float first = to_grid(value.first, a);
    const float second = to_grid(value.second, b);
    const uint16_t both = static_cast<uint16_t>((inside(first, a) ? 1u : 0u) | (inside(second, b) ? 0x100u : 0u));
    memcpy(mask + i, &both, sizeof both);
    store_pair({from_grid(saturate(first, a), a), from_grid(saturate(second, b), b)}, y + i);
  }
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
void elements(const BFloat16* x, BFloat16* y, bool* mask, int64_t count, const G& g) {
  mask ? run_pairs_mask(x, y, mask, count / 2, g) : run_pairs(x, y, count / 2, g);
  if (count % 2 != 0) {
    const int64_t last = count - 1;
    float real = to_float(x[last]);
    elements(&real, &real, mask ? mask + last : nullptr, 1, g.from(last));
    from_float(real, y[last]);
  }
}

template <typename T, typename Real>
void walk(const FakeQuantizeArgs& args, const Grids<Real>& grids, int64_t begin, int64_t end) {
  const T* x = static_cast<const T*>(args.x);
  T* y = static_cast<T*>(args.y);
  bool* mask = args.mask;
  for_each_channel(
      args.layout, begin, end,
      [&](int64_t i, int64_t n, int64_t c) {
        elements(x + i, y + i, mask ? mask + i : nullptr, n, OneGrid<Real>{grids.at(c)});
      },
      [&](int64_t i, int64_t n, int64_t c) {
        elements(x + i, y + i, mask ? mask + i : nullptr, n, grids.from(c));
      });
}

// Bits: a select of the incoming gradient, so that a clipped element gets 0 whatever comes in. Mask bytes are 0 or 1.
// A bitwise and in a free function: a conditional load, or pointers that may alias, would not vectorise (6 times slower).
template <typename Bits>
void select(const Bits* FXQ_RESTRICT grad, const uint8_t* FXQ_RESTRICT mask, Bits* FXQ_RESTRICT result,
            int64_t count) {
  for (int64_t i = 0; i < count; ++i) result[i] = grad[i] & static_cast<Bits>(-static_cast<Bits>(mask[i]));
}

template <typename Bits>
void walk_backward(const FakeQuantizeBackwardArgs& args, int64_t begin, int64_t end) {
  select(static_cast<const Bits*>(args.grad) + begin, reinterpret_cast<const uint8_t*>(args.mask) + begin,
         static_cast<Bits*>(args.result) + begin, end - begin);
}

}  // namespace

void fake_quantize_loop(const FakeQuantizeArgs& args, int64_t begin, int64_t end) {
  switch (args.type) {
    case Float::kFloat: return walk<float>(args, args.grids, begin, end);
    case Float::kDouble: return walk<double>(args, args.double_grids, begin, end);
    case Float::kHalf: return walk<Half>(args, args.grids, begin, end);
    case Float::kBFloat16: return walk<BFloat16>(args, args.grids, begin, end);
  }
}

void fake_quantize_backward_loop(const FakeQuantizeBackwardArgs& args, int64_t begin, int64_t end) {
  switch (args.type) {
    case Float::kFloat: return walk_backward<uint32_t>(args, begin, end);
    case Float::kDouble: return walk_backward<uint64_t>(args, begin, end);
    case Float::kHalf:
    case Float::kBFloat16: return walk_backward<uint16_t>(args, begin, end);
  }
}

}  // namespace FXQ_ISA
}  // namespace fxquant
