// Programs: the loops that the operators of a model launch for inputs of one shape, recorded once and run again without
// Python, checks and allocations.
//
// Memory of a run:
//   argument block  the argument structs of all steps, one behind the other, with the arrays that they point to; each run
//                   patches its pointers to inputs and outputs
//   arena           all temporary tensors but those inside chains; those that are not alive at the same time share memory
//   scratch         memory that a loop uses while it runs, one part for each thread
//
//   patch the pointers to inputs and outputs
//   for thread in threads:                  # in parallel
//       for step in steps:                  # one loop of one operator, or a chain of loops (chains.h)
//           for chunk of the step's tasks:  # at most one for each thread, of about `grain` tasks or more
//               if nobody has claimed the chunk: run the loop on its tasks
//           wait until all chunks of the step are done
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#include <sys/mman.h>
#endif

#include "common/layout.h"
#include "cpu/allocations.h"
#include "cpu/chains.h"
#include "cpu/fuse_tables.h"
#include "cpu/launch.h"

namespace fxquant {

struct FreeMemory {
  void operator()(uint8_t* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<uint8_t[], FreeMemory>;

inline Memory allocate(int64_t bytes) {
  constexpr int64_t kHuge = 2 << 20;
  const int64_t alignment = bytes >= kHuge ? kHuge : kCacheLine;
  maybe_fail_allocation();
  const int64_t whole = (std::max<int64_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  Memory memory(static_cast<uint8_t*>(std::aligned_alloc(alignment, whole)));
  if (!memory) throw std::bad_alloc();
#if defined(__linux__)
  if (bytes >= kHuge) madvise(memory.get(), whole, MADV_HUGEPAGE);  // A refusal changes nothing.
#endif
  return memory;
}

// The slot of a temporary tensor in the arena. The tensor is alive from its first step to its last.
struct ArenaSlot {
  int64_t bytes;
  int64_t first;
  int64_t last;
  int64_t offset;  // in the arena
};

// Places the slots in the arena: large ones first, each at the lowest offset that no slot uses that is alive at the same
// time. Returns the size of the arena.
inline int64_t plan_arena(std::vector<ArenaSlot>& slots) {
  std::vector<ArenaSlot*> order;
  for (ArenaSlot& slot : slots) order.push_back(&slot);
  std::stable_sort(order.begin(), order.end(), [](const ArenaSlot* a, const ArenaSlot* b) { return a->bytes > b->bytes; });
  std::vector<const ArenaSlot*> placed;  // sorted by offset
  int64_t size = 0;
  for (ArenaSlot* slot : order) {
    int64_t offset = 0;
    for (const ArenaSlot* other : placed) {
      if (other->last < slot->first || other->first > slot->last) continue;
      if (other->offset >= offset + slot->bytes) break;
      offset = std::max(offset, other->offset + other->bytes);
    }
    slot->offset = offset;
    size = std::max(size, offset + slot->bytes);
    const auto after = std::upper_bound(placed.begin(), placed.end(), slot,
                                        [](const ArenaSlot* a, const ArenaSlot* b) { return a->offset < b->offset; });
    placed.insert(after, slot);
  }
  return size;
}

// The division of a step's tasks: so many chunks of so many tasks.
struct Chunks {
  int64_t count;
  int64_t tasks;
};

// Returns the division into at most `most_chunks` chunks.
inline Chunks chunks_of(const Step& step, int64_t most_chunks) {
  const int64_t wanted = std::min((step.tasks + step.grain - 1) / step.grain, most_chunks);
  const int64_t tasks = (step.tasks + wanted - 1) / wanted;
  return {(step.tasks + tasks - 1) / tasks, tasks};
}

// Which chunks of which steps the threads of a run have claimed and finished.
class Progress {
 public:
  explicit Progress(int64_t steps) : done_(steps) {}

  // Forgets all claims, and makes room for so many chunks of each step.
  void reset(int64_t most_chunks) {
    if (most_chunks > chunks_per_step_) {
      chunks_per_step_ = most_chunks;
      taken_ = std::vector<std::atomic<bool>>(done_.size() * most_chunks);
    } else {
      for (std::atomic<bool>& taken : taken_) taken.store(false, std::memory_order_relaxed);
    }
    for (Count& count : done_) count.chunks.store(0, std::memory_order_relaxed);
  }

  // Claims a chunk. Returns whether the caller is the first, and so has to run it.
  bool claim(int64_t step, int64_t chunk) {
    std::atomic<bool>& taken = taken_[step * chunks_per_step_ + chunk];
    return !taken.load(std::memory_order_relaxed) && !taken.exchange(true, std::memory_order_relaxed);
  }
  void finish(int64_t step) { done_[step].chunks.fetch_add(1, std::memory_order_release); }
  int64_t finished(int64_t step) const { return done_[step].chunks.load(std::memory_order_acquire); }

 private:
  struct alignas(kCacheLine) Count {
    std::atomic<int64_t> chunks{0};
  };
  std::vector<Count> done_;
  std::vector<std::atomic<bool>> taken_;
  int64_t chunks_per_step_ = 0;
};

// A pointer in the argument block that is written before a run.
struct PointerPatch {
  int64_t at;      // where it stands in the argument block
  int64_t index;   // number of the input or output that it leads to
  int64_t offset;  // bytes from the begin of what it leads to
};

// The memory of a run. Runs of several threads have one each.
struct Workspace {
  Memory arguments;
  Memory arena;
  Memory scratch;
  int64_t scratch_bytes = 0;
  std::unique_ptr<Progress> progress;
};

class Program {
 public:
  explicit Program(const Recorder& recorder) : steps_(recorder.steps), arguments_(recorder.arguments.bytes) {
    maybe_fail_allocation();
    // Fuse lookup tables into the steps before them.
    std::vector<ArgumentPointer> pointers = recorder.arguments.pointers;
    fuse_tables(steps_, pointers);
    // Make chains of steps between which large tensors lie.
    chains_ = make_chains(steps_, pointers);
    // Sort the pointers by what they lead to. A temporary tensor is alive from the first step that uses it to the last.
    std::vector<ArenaSlot> slots;
    std::map<const Region*, size_t> slot_of;
    struct ArenaPointer {
      int64_t at;
      size_t slot;
      int64_t offset;
    };
    std::vector<ArenaPointer> arena_pointers;
    int64_t step = 0;
    for (const ArgumentPointer& pointer : pointers) {
      // Pointers come in the order of their steps, as the argument structs do.
      while (step + 1 < static_cast<int64_t>(steps_.size()) && steps_[step + 1].args <= pointer.at) ++step;
      if (pointer.region == nullptr) {
        argument_block_patches_.push_back({pointer.at, 0, pointer.offset});
        continue;
      }
      const Region& region = *pointer.region;
      switch (region.role) {
        case Role::kInput: inputs_.push_back({pointer.at, region.index, pointer.offset}); break;
        case Role::kOutput: outputs_.push_back({pointer.at, region.index, pointer.offset}); break;
        case Role::kConstant: write(arguments_.data(), pointer.at, region.begin + pointer.offset); break;
        case Role::kTemporary: {
          const auto [found, added] = slot_of.emplace(&region, slots.size());
          if (added) slots.push_back({aligned(region.bytes + kCacheLine), step, step, 0});
          slots[found->second].last = step;
          arena_pointers.push_back({pointer.at, found->second, pointer.offset});
        }
      }
    }
    // Place the temporary tensors in the arena.
    arena_bytes_ = plan_arena(slots);
    for (const ArenaPointer& pointer : arena_pointers) {
      arena_.push_back({pointer.at, 0, slots[pointer.slot].offset + pointer.offset});
    }
    for (const Step& each : steps_) scratch_bytes_ = std::max(scratch_bytes_, aligned(each.scratch));
  }

  // Runs the program once. With `fill`, arena and scratch memory are filled with that byte first, so that a loop that reads
  // what no loop wrote gives other results.
  void run(uint8_t* const* inputs, uint8_t* const* outputs, std::optional<uint8_t> fill) {
    std::unique_ptr<Workspace> workspace = acquire_workspace();
    // Patch the pointers to inputs and outputs.
    uint8_t* arguments = workspace->arguments.get();
    for (const PointerPatch& patch : inputs_) write(arguments, patch.at, inputs[patch.index] + patch.offset);
    for (const PointerPatch& patch : outputs_) write(arguments, patch.at, outputs[patch.index] + patch.offset);
    // Divide the steps among the threads, and provide scratch memory for each thread.
    int64_t most_chunks = 1;  // of any step: so many threads take part
    const int64_t threads = torch::stable::get_num_threads();
    for (const Step& step : steps_) most_chunks = std::max(most_chunks, chunks_of(step, threads).count);
    if (workspace->scratch_bytes < most_chunks * scratch_bytes_) {
      workspace->scratch_bytes = most_chunks * scratch_bytes_;
      workspace->scratch.reset();
      workspace->scratch = allocate(workspace->scratch_bytes);
    }
    // Fill the memory, and run.
    if (fill.has_value()) {
      // either may be empty, and then has no address
      std::fill_n(workspace->arena.get(), arena_bytes_, *fill);
      std::fill_n(workspace->scratch.get(), workspace->scratch_bytes, *fill);
    }
    if (most_chunks == 1) {
      for (const Step& step : steps_) {
        run_tasks(step, arguments, 0, step.tasks, workspace->scratch.get());
      }
    } else {
      workspace->progress->reset(most_chunks);
      Workspace& shared = *workspace;
      torch::stable::parallel_for(0, most_chunks, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) run_steps(shared, most_chunks, i);
      });
    }
    release_workspace(std::move(workspace));
  }

  int64_t arena_bytes() const { return arena_bytes_; }
  int64_t steps() const { return static_cast<int64_t>(steps_.size()); }
  const std::vector<Chain>& chains() const { return chains_; }
  int64_t loops() const {
    int64_t count = steps();
    for (const Chain& chain : chains_) count += static_cast<int64_t>(chain.links.size()) - 1;
    return count;
  }

 private:
  void run_tasks(const Step& step, const uint8_t* arguments, int64_t begin, int64_t end, uint8_t* scratch) const {
    if (step.chain >= 0) return chains_[step.chain].run(arguments, begin, end, scratch);
    // step.loop is the lambda that the binding gave to launch(); step.call (recorder.h) calls it with its argument struct.
    step.call(step.loop, arguments + step.args, begin, end, scratch);
  }

  static void write(uint8_t* arguments, int64_t at, const uint8_t* pointer) {
    std::memcpy(arguments + at, &pointer, sizeof(pointer));
  }

  // Goes through all steps, as every thread does. It first claims the chunk of its own number: the values that it reads are
  // often those that this thread wrote in the step before, which are in its cache. Then it claims chunks that no thread has
  // claimed. It waits for chunks that other threads run, and never for a thread that has not come.
  void run_steps(Workspace& workspace, int64_t most_chunks, int64_t thread) const {
    constexpr int kSpins = 2000;
    uint8_t* scratch = workspace.scratch.get() + thread * scratch_bytes_;
    Progress& progress = *workspace.progress;
    for (int64_t i = 0; i < steps(); ++i) {
      const Step& step = steps_[i];
      const Chunks chunks = chunks_of(step, most_chunks);
      const auto run_unclaimed = [&](int64_t first) {
        for (int64_t k = 0; k < chunks.count; ++k) {
          const int64_t chunk = (first + k) % chunks.count;
          if (!progress.claim(i, chunk)) continue;
          const int64_t begin = chunk * chunks.tasks;
          const int64_t end = std::min(begin + chunks.tasks, step.tasks);
          run_tasks(step, workspace.arguments.get(), begin, end, scratch);
          progress.finish(i);
        }
      };
      if (thread < chunks.count) run_unclaimed(thread);
      for (int spins = 0; progress.finished(i) < chunks.count; ++spins) {
#if defined(FXQ_X86)
        __builtin_ia32_pause();
#endif
        if (spins < kSpins) continue;
        run_unclaimed(0);  // The thread of this number has not come, and may never come.
#if defined(__linux__)
        sched_yield();
#endif
      }
    }
  }

  std::unique_ptr<Workspace> acquire_workspace() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!spare_.empty()) {
        std::unique_ptr<Workspace> workspace = std::move(spare_.back());
        spare_.pop_back();
        return workspace;
      }
    }
    auto workspace = std::make_unique<Workspace>();
    workspace->arguments = allocate(static_cast<int64_t>(arguments_.size()));
    workspace->arena = allocate(arena_bytes_);
    workspace->progress = std::make_unique<Progress>(steps());
    uint8_t* arguments = workspace->arguments.get();
    std::memcpy(arguments, arguments_.data(), arguments_.size());
    for (const PointerPatch& patch : argument_block_patches_) write(arguments, patch.at, arguments + patch.offset);
    for (const PointerPatch& patch : arena_) write(arguments, patch.at, workspace->arena.get() + patch.offset);
    return workspace;
  }

  // Keeps a few workspaces for later runs, and frees the others.
  void release_workspace(std::unique_ptr<Workspace> workspace) {
    constexpr size_t kSpare = 2;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (spare_.size() < kSpare) spare_.push_back(std::move(workspace));
  }

  std::vector<Step> steps_;
  std::vector<Chain> chains_;
  std::vector<uint8_t> arguments_;
  std::vector<PointerPatch> inputs_, outputs_, arena_;
  std::vector<PointerPatch> argument_block_patches_;  // pointers that lead into the argument block itself
  int64_t arena_bytes_ = 0;
  int64_t scratch_bytes_ = 0;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Workspace>> spare_;
};

}  // namespace fxquant
