// Recordings and programs as fxquant/runtime/program.py sees them, through ctypes. No exception leaves a function;
// fxquant_failure() says what failed.
#include "cpu/program.h"

#include <cstdio>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include "cpu/guarded.h"

namespace fxquant {
namespace {

thread_local Recorder* active = nullptr;
thread_local char failure[256] = "";  // message of the last function that failed in this thread

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

// Returns a new recording, or null where that failed.
FXQ_EXPORT fxquant::Recorder* fxquant_record_begin() {
  return fxquant::guarded<fxquant::Recorder*>(nullptr, [] {
    fxquant::count_allocation();
    return new fxquant::Recorder();
  });
}

FXQ_EXPORT void fxquant_record_free(fxquant::Recorder* recorder) { delete recorder; }

// Records what the operators of this thread launch from here on; with null, nothing. Returns the recording before.
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

// Drops the steps from number `steps` on.
FXQ_EXPORT void fxquant_record_forget(fxquant::Recorder* recorder, int64_t steps) { recorder->forget(steps); }

// Returns the program of what was recorded, or null where that failed.
FXQ_EXPORT fxquant::Program* fxquant_record_end(const fxquant::Recorder* recorder) {
  return fxquant::guarded<fxquant::Program*>(nullptr, [&] { return new fxquant::Program(*recorder); });
}

// Gives freed memory back to the system. Packing and recording need as much as a model for a while, and the allocator would
// keep it where small blocks lie behind it.
FXQ_EXPORT void fxquant_trim() {
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
}

FXQ_EXPORT void fxquant_program_free(fxquant::Program* program) { delete program; }

FXQ_EXPORT int64_t fxquant_program_steps(const fxquant::Program* program) { return program->steps(); }

FXQ_EXPORT int64_t fxquant_program_arena(const fxquant::Program* program) { return program->arena_bytes(); }

// Runs a program. Several threads may call. A pattern of 0 to 255 fills arena and scratch memory first; -1: none does.
// Returns whether there was enough memory.
FXQ_EXPORT bool fxquant_program_run(fxquant::Program* program, uint8_t* const* inputs, uint8_t* const* outputs,
                                    int64_t pattern) {
  return fxquant::succeeds([&] {
    program->run(inputs, outputs, pattern < 0 ? std::nullopt : std::optional<uint8_t>(static_cast<uint8_t>(pattern)));
  });
}

// For tests: makes every allocation fail that comes after `count` others; -1: none.
FXQ_EXPORT void fxquant_fail_allocations(int64_t count) {
  fxquant::allocations_between_failures = count;
  fxquant::allocations_until_failure = count;
}
