// Several elements at once: a thread moves 16 bytes of its widest tensor, which is one instruction.
#pragma once
#include <cstdint>

#include "common/layout.h"
#include "cuda/host_device.h"

namespace fxquant {

constexpr int kPackBytes = 16;

template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
  T at[N];
};

template <int N, typename T>
FXQ_MEMBER Pack<T, N> load_pack(const T* x) {
  return *reinterpret_cast<const Pack<T, N>*>(x);
}

template <typename T, int N>
FXQ_MEMBER void store_pack(const Pack<T, N>& pack, T* y) {
  *reinterpret_cast<Pack<T, N>*>(y) = pack;
}

// Whether packs of N can begin there. True of null, where nothing is read or written.
template <int N, typename T>
bool starts_pack(const T* x) {
  return reinterpret_cast<uintptr_t>(x) % sizeof(Pack<T, N>) == 0;
}

// Items of a body that takes packs: item k < packs is the elements from k * kPack on, the others follow one by one.
template <typename F>
struct Items {
  F f;
  int64_t packs;

  FXQ_MEMBER void operator()(int64_t item) const {
    if (item < packs) {
      f.template run<F::kPack>(item * F::kPack);
    } else {
      f.template run<1>(packs * (F::kPack - 1) + item);
    }
  }
};

// The elements of one channel as items: outer stretches of inner elements, each of packs and then single ones.
struct Stretches {
  Layout layout;
  int64_t packs;  // of a stretch
  int pack;       // elements of a pack

  // With several channels, a stretch begins at a pack only if all are whole packs long.
  Stretches(const Layout& layout_, int pack_, bool aligned)
      : layout(layout_),
        packs(aligned && (layout.channels == 1 || layout.inner % pack_ == 0) ? layout.inner / pack_ : 0),
        pack(pack_) {}

  FXQ_MEMBER int64_t width() const { return packs + (layout.inner - packs * pack); }
  FXQ_MEMBER int64_t count() const { return layout.outer * width(); }

  // Calls f.template add<N>(i): for the N elements from i on, or for one.
  template <int N, typename F>
  FXQ_MEMBER void visit(int64_t channel, int64_t item, F& f) const {
    const int64_t stretch = item / width();
    const int64_t k = item % width();
    const int64_t first = (stretch * layout.channels + channel) * layout.inner;
    if (k < packs) {
      f.template add<N>(first + k * N);
    } else {
      f.template add<1>(first + packs * (N - 1) + k);
    }
  }
};

}  // namespace fxquant
