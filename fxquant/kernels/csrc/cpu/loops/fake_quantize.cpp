#include "fake_quantize.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

template <typename Real>
void run(const Real* FXQ_RESTRICT x, Real* FXQ_RESTRICT y, int64_t count, const Affine<Real> a) {
  for (int64_t i = 0; i < count; ++i) y[i] = from_grid(saturate(to_grid(x[i], a), a), a);
}

template <typename Real>
void run_mask(const Real* FXQ_RESTRICT x, Real* FXQ_RESTRICT y, bool* FXQ_RESTRICT mask, int64_t count,
              const Affine<Real> a) {
  for (int64_t i = 0; i < count; ++i) {
    const Real step = to_grid(x[i], a);
    mask[i] = inside(step, a);
    y[i] = from_grid(saturate(step, a), a);
  }
}

template <typename Real>
void row(const Real* FXQ_RESTRICT x, Real* FXQ_RESTRICT y, int64_t count, const Grids<Real> g) {
  for (int64_t i = 0; i < count; ++i) {
    const Affine<Real> a = g.at(i);
    y[i] = from_grid(saturate(to_grid(x[i], a), a), a);
  }
}

template <typename Real>
void row_mask(const Real* FXQ_RESTRICT x, Real* FXQ_RESTRICT y, bool* FXQ_RESTRICT mask, int64_t count,
              const Grids<Real> g) {
  for (int64_t i = 0; i < count; ++i) {
    const Affine<Real> a = g.at(i);
    const Real step = to_grid(x[i], a);
    mask[i] = inside(step, a);
    y[i] = from_grid(saturate(step, a), a);
  }
}

// float and double as they are; 16-bit floats block by block.
template <typename Real>
void stretch(const Real* x, Real* y, bool* mask, int64_t count, const Affine<Real>& a) {
  mask ? run_mask(x, y, mask, count, a) : run(x, y, count, a);
}

template <typename Real>
void channels(const Real* x, Real* y, bool* mask, int64_t count, const Grids<Real>& g) {
  mask ? row_mask(x, y, mask, count, g) : row(x, y, count, g);
}

template <Float type>
void stretch(const Short<type>* x, Short<type>* y, bool* mask, int64_t count, const Affine<float>& a) {
  float real[kBlock];
  float result[kBlock];
  for_each_block(count, [&](int64_t i, int64_t n) {
    widen(x + i, real, n);
    stretch(real, result, mask ? mask + i : nullptr, n, a);
    narrow(result, y + i, n);
  });
}

template <Float type>
void channels(const Short<type>* x, Short<type>* y, bool* mask, int64_t count, const Grids<float>& g) {
  float real[kBlock];
  float result[kBlock];
  for_each_block(count, [&](int64_t i, int64_t n) {
    widen(x + i, real, n);
    channels(real, result, mask ? mask + i : nullptr, n, g.from(i));
    narrow(result, y + i, n);
  });
}

template <typename T, typename Real>
void walk(const FakeQuantizeArgs& args, const Grids<Real>& grids, int64_t begin, int64_t end) {
  const T* x = static_cast<const T*>(args.x);
  T* y = static_cast<T*>(args.y);
  bool* mask = args.mask;
  for_each_channel(
      args.layout, begin, end,
      [&](int64_t i, int64_t n, int64_t c) { stretch(x + i, y + i, mask ? mask + i : nullptr, n, grids.at(c)); },
      [&](int64_t i, int64_t n, int64_t c) { channels(x + i, y + i, mask ? mask + i : nullptr, n, grids.from(c)); });
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
