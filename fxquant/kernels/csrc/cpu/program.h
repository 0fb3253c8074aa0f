// Programs: the loops that the operators of a model launch for inputs of one shape, recorded once and run again by
// themselves. Between two loops there is no Python, no check and no allocation: what lives between them lies in one
// arena, where what is not needed at the same time shares its place.
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
#include "cpu/fuse_tables.h"
#include "cpu/launch.h"

namespace fxquant {

inline int64_t aligned(int64_t bytes) { return (bytes + kCacheLine - 1) / kCacheLine * kCacheLine; }

struct FreeMemory {
  void operator()(uint8_t* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<uint8_t[], FreeMemory>;

inline Memory allocate(int64_t bytes) {
  constexpr int64_t kHuge = 2 << 20;
  const int64_t alignment = bytes >= kHuge ? kHuge : kCacheLine;
  count_allocation();
  const int64_t whole = (std::max<int64_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  Memory memory(static_cast<uint8_t*>(std::aligned_alloc(alignment, whole)));
  if (!memory) throw std::bad_alloc();
#if defined(__linux__)
  if (bytes >= kHuge) madvise(memory.get(), whole, MADV_HUGEPAGE);  // a refusal changes nothing
#endif
  return memory;
}

// Places in the arena for buffers, each needed from its first step to its last.
struct Buffer {
  int64_t bytes;
  int64_t first;
  int64_t last;
  int64_t place;
};

// Large ones first, each as low as those permit that are needed at the same time. Returns the size of the arena.
inline int64_t plan_arena(std::vector<Buffer>& buffers) {
  std::vector<Buffer*> order;
  for (Buffer& buffer : buffers) order.push_back(&buffer);
  std::stable_sort(order.begin(), order.end(), [](const Buffer* a, const Buffer* b) { return a->bytes > b->bytes; });
  std::vector<const Buffer*> placed;  // by place
  int64_t size = 0;
  for (Buffer* buffer : order) {
    int64_t place = 0;
    for (const Buffer* other : placed) {
      if (other->last < buffer->first || other->first > buffer->last) continue;
      if (other->place >= place + buffer->bytes) break;
      place = std::max(place, other->place + other->bytes);
    }
    buffer->place = place;
    size = std::max(size, place + buffer->bytes);
    const auto after = std::upper_bound(placed.begin(), placed.end(), buffer,
                                        [](const Buffer* a, const Buffer* b) { return a->place < b->place; });
    placed.insert(after, buffer);
  }
  return size;
}

// The share of a step that one thread takes at a time, and how many there are.
struct Chunks {
  int64_t count;
  int64_t tasks;
};

inline Chunks chunks_of(const Step& step, int64_t threads) {
  const int64_t wanted = std::min((step.tasks + step.grain - 1) / step.grain, threads);
  const int64_t tasks = (step.tasks + wanted - 1) / wanted;
  return {(step.tasks + tasks - 1) / tasks, tasks};
}

// How far the threads of a run have come with the steps.
class Progress {
 public:
  explicit Progress(int64_t steps) : done_(steps) {}

  void start(int64_t most) {
    if (most > chunks_per_step_) {
      chunks_per_step_ = most;
      taken_ = std::vector<std::atomic<bool>>(done_.size() * most);
    } else {
      for (std::atomic<bool>& taken : taken_) taken.store(false, std::memory_order_relaxed);
    }
    for (Count& count : done_) count.chunks.store(0, std::memory_order_relaxed);
  }

  // Whether the caller is the one to run a share.
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
  int64_t chunks_per_step_ = 0;  // shares of a step
};

// A pointer that is another in each run.
struct PointerPatch {
  int64_t at;
  int64_t index;
  int64_t offset;
};

// What a run writes to. Only one thread has it at a time.
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
    count_allocation();
    std::vector<PointerSlot> slots = recorder.arguments.slots;
    fuse_tables(steps_, slots);
    std::vector<Buffer> buffers;
    std::map<const Region*, size_t> buffer_of;
    struct ArenaSlot {
      int64_t at;
      size_t buffer;
      int64_t offset;
    };
    std::vector<ArenaSlot> arena_slots;
    int64_t step = 0;
    for (const PointerSlot& slot : slots) {
      // slots come in the order of their steps, as places in the image do
      while (step + 1 < static_cast<int64_t>(steps_.size()) && steps_[step + 1].args <= slot.at) ++step;
      if (slot.region == nullptr) {
        internal_.push_back({slot.at, 0, slot.offset});
        continue;
      }
      const Region& region = *slot.region;
      switch (region.role) {
        case Role::kInput: inputs_.push_back({slot.at, region.index, slot.offset}); break;
        case Role::kOutput: outputs_.push_back({slot.at, region.index, slot.offset}); break;
        case Role::kConstant: write(arguments_.data(), slot.at, region.begin + slot.offset); break;
        case Role::kTemporary: {
          const auto [found, added] = buffer_of.emplace(&region, buffers.size());
          if (added) buffers.push_back({aligned(region.bytes + kCacheLine), step, step, 0});
          buffers[found->second].last = step;
          arena_slots.push_back({slot.at, found->second, slot.offset});
        }
      }
    }
    arena_bytes_ = plan_arena(buffers);
    for (const ArenaSlot& slot : arena_slots) arena_.push_back({slot.at, 0, buffers[slot.buffer].place + slot.offset});
    for (const Step& each : steps_) scratch_bytes_ = std::max(scratch_bytes_, aligned(each.scratch));
  }

  // With a pattern, that is what the memory between the loops is filled with first: what is read before it is written
  // shows.
  void run(uint8_t* const* inputs, uint8_t* const* outputs, std::optional<uint8_t> pattern) {
    std::unique_ptr<Workspace> workspace = acquire_workspace();
    uint8_t* arguments = workspace->arguments.get();
    for (const PointerPatch& slot : inputs_) write(arguments, slot.at, inputs[slot.index] + slot.offset);
    for (const PointerPatch& slot : outputs_) write(arguments, slot.at, outputs[slot.index] + slot.offset);
    int64_t most = 1;  // shares of a step
    const int64_t threads = torch::stable::get_num_threads();
    for (const Step& step : steps_) most = std::max(most, chunks_of(step, threads).count);
    if (workspace->scratch_bytes < most * scratch_bytes_) {
      workspace->scratch_bytes = most * scratch_bytes_;
      workspace->scratch.reset();
      workspace->scratch = allocate(workspace->scratch_bytes);
    }
    if (pattern.has_value()) {
      std::memset(workspace->arena.get(), *pattern, arena_bytes_);
      std::memset(workspace->scratch.get(), *pattern, workspace->scratch_bytes);
    }
    if (most == 1) {
      for (const Step& step : steps_) {
        step.call(step.loop, arguments + step.args, 0, step.tasks, workspace->scratch.get());
      }
    } else {
      workspace->progress->start(most);
      Workspace& shared = *workspace;
      torch::stable::parallel_for(0, most, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) run_steps(shared, most, i);
      });
    }
    release_workspace(std::move(workspace));
  }

  int64_t arena_bytes() const { return arena_bytes_; }
  int64_t steps() const { return static_cast<int64_t>(steps_.size()); }

 private:
  static void write(uint8_t* arguments, int64_t at, const uint8_t* pointer) {
    std::memcpy(arguments + at, &pointer, sizeof(pointer));
  }

  // Every thread goes through all steps. It takes the share of its number, whose values are in its cache if they are of
  // the same images as those of the step before; then what others left. One that comes late finds nothing; one that
  // comes never is not missed: the others wait for shares that somebody works on, and for nothing else.
  void run_steps(Workspace& workspace, int64_t threads, int64_t thread) const {
    constexpr int kSpins = 2000;
    uint8_t* scratch = workspace.scratch.get() + thread * scratch_bytes_;
    Progress& progress = *workspace.progress;
    for (int64_t i = 0; i < steps(); ++i) {
      const Step& step = steps_[i];
      const Chunks chunks = chunks_of(step, threads);
      const auto run_unclaimed = [&](int64_t first) {
        for (int64_t k = 0; k < chunks.count; ++k) {
          const int64_t chunk = (first + k) % chunks.count;
          if (!progress.claim(i, chunk)) continue;
          const int64_t begin = chunk * chunks.tasks;
          const int64_t end = std::min(begin + chunks.tasks, step.tasks);
          step.call(step.loop, workspace.arguments.get() + step.args, begin, end, scratch);
          progress.finish(i);
        }
      };
      if (thread < chunks.count) run_unclaimed(thread);
      for (int spins = 0; progress.finished(i) < chunks.count; ++spins) {
#if defined(FXQ_X86)
        __builtin_ia32_pause();
#endif
        if (spins < kSpins) continue;
        run_unclaimed(0);  // whose number this is has not come, and may never
#if defined(__linux__)
        sched_yield();
#endif
      }
    }
  }

  std::unique_ptr<Workspace> acquire_workspace() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!idle_.empty()) {
        std::unique_ptr<Workspace> workspace = std::move(idle_.back());
        idle_.pop_back();
        return workspace;
      }
    }
    auto workspace = std::make_unique<Workspace>();
    workspace->arguments = allocate(static_cast<int64_t>(arguments_.size()));
    workspace->arena = allocate(arena_bytes_);
    workspace->progress = std::make_unique<Progress>(steps());
    uint8_t* arguments = workspace->arguments.get();
    std::memcpy(arguments, arguments_.data(), arguments_.size());
    for (const PointerPatch& slot : internal_) write(arguments, slot.at, arguments + slot.offset);
    for (const PointerPatch& slot : arena_) write(arguments, slot.at, workspace->arena.get() + slot.offset);
    return workspace;
  }

  // Of the workspaces of many threads that ran at once, a few stay.
  void release_workspace(std::unique_ptr<Workspace> workspace) {
    constexpr size_t kIdle = 2;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (idle_.size() < kIdle) idle_.push_back(std::move(workspace));
  }

  std::vector<Step> steps_;
  std::vector<uint8_t> arguments_;
  std::vector<PointerPatch> inputs_, outputs_, internal_, arena_;
  int64_t arena_bytes_ = 0;
  int64_t scratch_bytes_ = 0;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Workspace>> idle_;
};

}  // namespace fxquant
