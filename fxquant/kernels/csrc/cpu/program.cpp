// Programs as fxquant/runtime/program.py sees them, through ctypes; recorder.cpp has recordings. No exception leaves a
// function; fxquant_failure() says what failed.
#include "cpu/program.h"

#include <cstdio>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include "cpu/guarded.h"

namespace fxquant {
namespace {

thread_local char failure[256] = "";  // message of the last function that failed in this thread

}  // namespace

void note_failure(const char* reason) { std::snprintf(failure, sizeof(failure), "%s", reason); }

}  // namespace fxquant

#define FXQ_EXPORT extern "C" __attribute__((visibility("default")))

FXQ_EXPORT const char* fxquant_failure() { return fxquant::failure; }

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

FXQ_EXPORT int64_t fxquant_program_loops(const fxquant::Program* program) { return program->loops(); }

// Returns the number, among the steps that were recorded, of a link of a chain; -1: there is no such chain or link.
FXQ_EXPORT int64_t fxquant_program_link(const fxquant::Program* program, int64_t chain, int64_t link) {
  const std::vector<fxquant::Chain>& chains = program->chains();
  if (chain >= static_cast<int64_t>(chains.size())) return -1;
  const std::vector<fxquant::Chain::Link>& links = chains[chain].links;
  return link < static_cast<int64_t>(links.size()) ? links[link].step.number : -1;
}

// For tests: chains are made where results of so many bytes lie between their links. Returns the number before.
FXQ_EXPORT int64_t fxquant_chains_from(int64_t bytes) { return fxquant::chains_from.exchange(bytes); }

FXQ_EXPORT int64_t fxquant_program_arena(const fxquant::Program* program) { return program->arena_bytes(); }

// Runs a program. Several threads may call. A byte `fill` of 0 to 255 fills arena and scratch memory first; -1: none does.
// Returns whether it ran; if not, fxquant_failure() says why.
FXQ_EXPORT bool fxquant_program_run(fxquant::Program* program, uint8_t* const* inputs, uint8_t* const* outputs,
                                    int64_t fill) {
  return fxquant::succeeds([&] {
    program->run(inputs, outputs, fill < 0 ? std::nullopt : std::optional<uint8_t>(static_cast<uint8_t>(fill)));
  });
}

// The same for a program of one input and one output, without a fill: a call of a small model is short, and arrays of
// pointers would take a tenth of it.
FXQ_EXPORT bool fxquant_program_run_one(fxquant::Program* program, uint8_t* input, uint8_t* output) {
  return fxquant::succeeds([&] { program->run(&input, &output, std::nullopt); });
}

// For tests: makes every allocation fail that comes after `count` others; -1: none.
FXQ_EXPORT void fxquant_fail_allocations(int64_t count) {
  fxquant::allocations_between_failures = count;
  fxquant::allocations_until_failure = count;
}
