// One value of all elements of each channel, always in the same order: threads take elements, blocks add their threads
// up (CUB), and a second kernel adds the blocks of a channel up.
//
// A body has   using Value; static Value nothing(); static Value sum(a, b);
//              kPack; bool aligned(); auto channel(c), read once by each thread;
//              template <int N> void add(channel, i, value): takes the N elements from i on into the value.
// An end is called once for each channel, with its index and value.
#pragma once
#if defined(__CUDACC__)
#include <cub/block/block_reduce.cuh>
#endif
#include <torch/csrc/stable/ops.h>

#include <utility>

#include "cuda/launch.h"

namespace fxquant {

// What one thread takes into its value.
template <typename Body>
struct Gather {
  using Channel = decltype(std::declval<const Body&>().channel(0));
  const Body& body;
  Channel channel;
  typename Body::Value value;

  FXQ_MEMBER Gather(const Body& body_, int64_t c) : body(body_), channel(body.channel(c)), value(Body::nothing()) {}

  template <int N>
  FXQ_MEMBER void add(int64_t i) {
    body.template add<N>(channel, i, value);
  }
};

// Every step-th item of a channel, from the first on.
template <typename Body>
FXQ_MEMBER typename Body::Value gather(const Body& body, const Stretches& stretches, int64_t c, int64_t first,
                                       int64_t step) {
  Gather<Body> gathered(body, c);
  const int64_t count = stretches.count();
  for (int64_t item = first; item < count; item += step) {
    stretches.template visit<Body::kPack>(c, item, gathered);
  }
  return gathered.value;
}

// Channels that lie side by side (inner == 1): thread t takes elements t, t + threads and so on, which are of channel
// t % channels, since there are as many threads for each. So neighbouring threads read neighbouring elements.
template <typename Body>
struct SideBySide {
  Body body;
  Layout layout;
  int64_t parts;
  typename Body::Value* partial;  // [channels, parts]

  FXQ_MEMBER void operator()(int64_t t) const {
    const int64_t c = t % layout.channels;
    const int64_t numel = layout.outer * layout.channels;
    Gather<Body> gathered(body, c);
    for (int64_t i = t; i < numel; i += parts * layout.channels) gathered.template add<1>(i);
    partial[c * parts + t / layout.channels] = gathered.value;
  }
};

// Keeps the value of each block.
template <typename Value>
struct Keep {
  Value* partial;
  int64_t parts;

  FXQ_MEMBER void operator()(int64_t c, int64_t part, const Value& value) const { partial[c * parts + part] = value; }
};

// Values that are sums already.
template <typename Body>
struct Partials {
  using Value = typename Body::Value;
  static constexpr int kPack = 1;
  struct Channel {};
  const Value* partial;

  static FXQ_MEMBER Value nothing() { return Body::nothing(); }
  static FXQ_MEMBER Value sum(const Value& a, const Value& b) { return Body::sum(a, b); }
  FXQ_MEMBER Channel channel(int64_t) const { return {}; }
  template <int N>
  FXQ_MEMBER void add(const Channel&, int64_t i, Value& value) const {
    value = sum(value, partial[i]);
  }
};

template <typename End>
struct Whole {
  End end;

  template <typename Value>
  FXQ_MEMBER void operator()(int64_t c, int64_t, const Value& value) const {
    end(c, value);
  }
};

template <typename Body>
struct Sum {
  using Value = typename Body::Value;
  FXQ_MEMBER Value operator()(const Value& a, const Value& b) const { return Body::sum(a, b); }
};

#if defined(__CUDACC__)
// Block (p, c) takes part p of channel c.
template <typename Body, typename Out>
__global__ void __launch_bounds__(kThreads) reduce_kernel(Body body, Stretches stretches, Out out) {
  using Reduce = cub::BlockReduce<typename Body::Value, kThreads>;
  __shared__ typename Reduce::TempStorage storage;
  for (int64_t c = blockIdx.y; c < stretches.layout.channels; c += gridDim.y) {
    const int64_t first = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
    const auto mine = gather(body, stretches, c, first, static_cast<int64_t>(gridDim.x) * kThreads);
    const auto value = Reduce(storage).Reduce(mine, Sum<Body>{});
    if (threadIdx.x == 0) out(c, blockIdx.x, value);
    __syncthreads();
  }
}
#endif

template <typename Body, typename Out>
void reduce_blocks([[maybe_unused]] const torch::stable::Tensor& on, const Body& body, const Stretches& stretches,
                   int64_t parts, const Out& out) {
  const int64_t channels = stretches.layout.channels;
#if defined(__CUDACC__)
  const OnDevice device(on);
  const dim3 blocks(static_cast<unsigned>(parts), static_cast<unsigned>(std::min<int64_t>(channels, 65535)));
  reduce_kernel<<<blocks, kThreads, 0, device.stream()>>>(body, stretches, out);
  STD_CUDA_KERNEL_LAUNCH_CHECK();
#else
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t part = 0; part < parts; ++part) {
      auto value = Body::nothing();
      for (int64_t t = 0; t < kThreads; ++t) {
        value = Body::sum(value, gather(body, stretches, c, part * kThreads + t, parts * kThreads));
      }
      out(c, part, value);
    }
  }
#endif
}

// In how many parts a channel is taken: enough to fill a GPU, few enough that adding them up costs nothing. It depends
// on the layout alone, so that every GPU adds in the same order.
inline int64_t parts_of(const Layout& layout, int64_t items, bool side_by_side) {
  constexpr int64_t kMostBlocks = 1024;
  constexpr int64_t kItems = 4;  // for each thread at least
  const int64_t most = std::max<int64_t>(1, (side_by_side ? kMostBlocks * kThreads : kMostBlocks) / layout.channels);
  const int64_t useful = items / (side_by_side ? kItems : kItems * kThreads);
  return std::clamp<int64_t>(useful, 1, most);
}

template <typename Body, typename End>
void reduce_channels(const torch::stable::Tensor& on, const Body& body, const Layout& layout, const End& end) {
  using Value = typename Body::Value;
  if (layout.channels == 0) return;
  const bool side_by_side = layout.inner == 1 && layout.channels > 1;
  const Stretches stretches(layout, Body::kPack, body.aligned());
  const int64_t parts = parts_of(layout, side_by_side ? layout.outer : stretches.count(), side_by_side);
  const int64_t words[] = {layout.channels, parts, sizeof(Value) / sizeof(int64_t)};
  static_assert(sizeof(Value) % sizeof(int64_t) == 0 && alignof(Value) <= alignof(int64_t));
  const torch::stable::Tensor space =
      torch::stable::new_empty(on, {words, 3}, torch::headeronly::ScalarType::Long);
  Value* partial = static_cast<Value*>(space.mutable_data_ptr());
  if (side_by_side) {
    for_each(on, layout.channels * parts, SideBySide<Body>{body, layout, parts, partial});
  } else {
    reduce_blocks(on, body, stretches, parts, Keep<Value>{partial, parts});
  }
  const Layout sums{1, layout.channels, parts};
  reduce_blocks(on, Partials<Body>{partial}, Stretches(sums, 1, true), 1, Whole<End>{end});
}

}  // namespace fxquant
