// How a binding runs its loop: in parallel, at once; and as a step of a program, where this thread records one.
#pragma once
#include <torch/csrc/stable/ops.h>

#include <memory>

#include "cpu/recorder.h"

namespace fxquant {

// The loop of a binding for the instruction set that is active when it is called:
//   [](const CatArgs& args, int64_t begin, int64_t end, void*) { FXQ_LOOP(cat_loop)(args, begin, end); }
// The last argument is memory that the loop may use as it likes, `scratch` bytes of it; each thread has its own.
template <typename Args>
using LoopOf = void (*)(const Args&, int64_t, int64_t, void*);

// Runs the tasks 0 <= i < tasks, about `grain` successive ones or more on a thread.
template <typename Args, typename Loop>
void launch(const Args& args, int64_t tasks, int64_t grain, Loop lambda, int64_t scratch = 0) {
  const LoopOf<Args> loop = lambda;  // one without captures
  if (tasks > 0 && recorder() != nullptr) recorder()->add(args, tasks, grain, loop, scratch);
  torch::stable::parallel_for(0, tasks, grain, [&](int64_t begin, int64_t end) {
    const std::unique_ptr<uint8_t[]> memory(scratch > 0 ? new uint8_t[scratch] : nullptr);
    loop(args, begin, end, memory.get());
  });
}

}  // namespace fxquant
