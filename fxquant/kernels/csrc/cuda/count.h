// Counts the elements of rows into bins: in shared memory where these fit, else in global memory.
//
// A body has   rows, bins, int64_t* counts [rows, bins];
//              Stretches stretches(), kPack; auto row(r), read once by each thread;
//              template <int N> void add(row, i, count): calls count(bin) for those of the N elements from i on that count;
//              void carry(row, r, b): brings over what bin b counted before.
#pragma once
#include <type_traits>

#include "cuda/launch.h"

namespace fxquant {

// Counts elements one by one, where a counter may be shared by threads.
template <typename Counter>
struct CountIn {
  Counter* counters;

  FXQ_MEMBER void operator()(int64_t bin) const {
#if defined(__CUDA_ARCH__)
    using Word = typename std::conditional<sizeof(Counter) == 8, unsigned long long, unsigned int>::type;
    atomicAdd(reinterpret_cast<Word*>(counters + bin), Word{1});
#else
    ++counters[bin];
#endif
  }
};

// What one thread counts.
template <typename Body, typename Count>
struct Counted {
  const Body& body;
  const typename Body::Row& row;
  Count count;

  template <int N>
  FXQ_MEMBER void add(int64_t i) {
    body.template add<N>(row, i, count);
  }
};

// Every step-th item of a row, from the first on.
template <typename Body, typename Count>
FXQ_MEMBER void count_items(const Body& body, const Stretches& stretches, const typename Body::Row& row, int64_t r,
                            int64_t first, int64_t step, const Count& count) {
  Counted<Body, Count> counted{body, row, count};
  const int64_t items = stretches.count();
  for (int64_t item = first; item < items; item += step) {
    stretches.template visit<Body::kPack>(r, item, counted);
  }
}

#if defined(__CUDACC__)
constexpr int64_t kSharedBins = 8192;  // 32 KB of counters

// Block (b, r) counts part b of row r; block (0, r) brings over what was counted before.
template <typename Body>
__global__ void __launch_bounds__(kThreads) count_kernel(Body body, Stretches stretches) {
  extern __shared__ uint32_t shared[];
  const bool near = body.bins <= kSharedBins;
  for (int64_t r = blockIdx.y; r < body.rows; r += gridDim.y) {
    int64_t* counts = body.counts + r * body.bins;
    const auto row = body.row(r);
    for (int64_t b = threadIdx.x; near && b < body.bins; b += kThreads) shared[b] = 0;
    __syncthreads();
    const int64_t first = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
    const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
    if (near) {
      count_items(body, stretches, row, r, first, step, CountIn<uint32_t>{shared});
    } else {
      count_items(body, stretches, row, r, first, step, CountIn<int64_t>{counts});
    }
    __syncthreads();
    for (int64_t b = threadIdx.x; near && b < body.bins; b += kThreads) {
      if (shared[b] != 0) add_to(counts + b, shared[b]);
    }
    for (int64_t b = threadIdx.x; blockIdx.x == 0 && b < body.bins; b += kThreads) body.carry(row, r, b);
    __syncthreads();
  }
}
#endif

template <typename Body>
void count_bins([[maybe_unused]] const torch::stable::Tensor& on, const Body& body) {
  if (body.rows == 0) return;
  const Stretches stretches = body.stretches();
#if defined(__CUDACC__)
  constexpr int64_t kItems = 8;  // so that adding the counters of a block up costs less than counting
  constexpr int64_t kMostParts = 1024;
  const int64_t parts = std::clamp<int64_t>(stretches.count() / (kThreads * kItems), 1, kMostParts);
  const dim3 blocks(static_cast<unsigned>(parts), static_cast<unsigned>(std::min<int64_t>(body.rows, 65535)));
  const size_t bytes = body.bins <= kSharedBins ? body.bins * sizeof(uint32_t) : 0;
  const OnDevice device(on);
  count_kernel<<<blocks, kThreads, bytes, device.stream()>>>(body, stretches);
  STD_CUDA_KERNEL_LAUNCH_CHECK();
#else
  for (int64_t r = 0; r < body.rows; ++r) {
    const auto row = body.row(r);
    count_items(body, stretches, row, r, 0, 1, CountIn<int64_t>{body.counts + r * body.bins});
    for (int64_t b = 0; b < body.bins; ++b) body.carry(row, r, b);
  }
#endif
}

}  // namespace fxquant
