// Recordings and programs as fxquant/runtime/program.py sees them, through ctypes. No exception leaves a function: what
// failed says fxquant_failure().
#include "cpu/program.h"

#include <cstdio>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include "cpu/guarded.h"

namespace fxquant {
namespace {

thread_local Recorder* active = nullptr;
thread_local char failure[256] = "";  // of the last function that failed in this thread

}  // namespace

void note_failure(const char* reason) { std::snprintf(failure, sizeof(failure), "%s", reason); }

Recorder* recorder() { return active; }

Tensor allocated(Tensor x) {
  count_allocation();
  if (active != nullptr) active->keep_alive(x);
  return x;
}

}  // namespace fxquant

#define FXQ_EXPORT extern "C" __attribute__((visibility("default")))

FXQ_EXPORT const char* fxquant_failure() { return fxquant::failure; }

// A new recording; null where that failed.
FXQ_EXPORT fxquant::Recorder* fxquant_record_begin() {
  return fxquant::guarded<fxquant::Recorder*>(nullptr, [] {
    fxquant::count_allocation();
    return new fxquant::Recorder();
  });
}

FXQ_EXPORT void fxquant_record_free(fxquant::Recorder* recorder) { delete recorder; }

// From here on, what the operators of this thread launch is recorded, too; with null, no more. Returns what was recorded
// to before.
FXQ_EXPORT fxquant::Recorder* fxquant_record_to(fxquant::Recorder* recorder) {
  return std::exchange(fxquant::active, recorder);
}

// Makes memory known. Returns whether it could be.
FXQ_EXPORT bool fxquant_record_region(fxquant::Recorder* recorder, const uint8_t* begin, int64_t bytes, int64_t role,
                                      int64_t index) {
  return fxquant::succeeds(
      [&] { recorder->regions.add({begin, bytes, static_cast<fxquant::Role>(role), index}); });
}

FXQ_EXPORT int64_t fxquant_record_steps(const fxquant::Recorder* recorder) {
  return static_cast<int64_t>(recorder->steps.size());
}

// Forgets the steps from `steps` on.
FXQ_EXPORT void fxquant_record_forget(fxquant::Recorder* recorder, int64_t steps) { recorder->forget(steps); }

// The program of what was recorded; null where that failed.
FXQ_EXPORT fxquant::Program* fxquant_record_end(const fxquant::Recorder* recorder) {
  return fxquant::guarded<fxquant::Program*>(nullptr, [&] { return new fxquant::Program(*recorder); });
}

// Gives memory that was freed back to the system. The allocator keeps it where small blocks lie behind it, and what
// packing weights and recording need for a while is as much as a model.
FXQ_EXPORT void fxquant_trim() {
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
}

FXQ_EXPORT void fxquant_program_free(fxquant::Program* program) { delete program; }

FXQ_EXPORT int64_t fxquant_program_steps(const fxquant::Program* program) { return program->steps(); }

FXQ_EXPORT int64_t fxquant_program_arena(const fxquant::Program* program) { return program->arena_bytes(); }

// Several threads may call. A pattern of 0 to 255 fills the memory between the loops first; -1: none does. Returns whether
// there was memory enough.
FXQ_EXPORT bool fxquant_program_run(fxquant::Program* program, uint8_t* const* inputs, uint8_t* const* outputs,
                                    int64_t pattern) {
  return fxquant::succeeds([&] {
    program->run(inputs, outputs, pattern < 0 ? std::nullopt : std::optional<uint8_t>(static_cast<uint8_t>(pattern)));
  });
}

// For tests: lets every allocation fail that comes after `count` others; -1: none.
FXQ_EXPORT void fxquant_fail_allocations(int64_t count) {
  fxquant::allocations_between_failures = count;
  fxquant::allocations_until_failure = count;
}
