// Recordings: the one of each thread, and recordings as fxquant/runtime/recording.py sees them, through ctypes. No exception
// leaves a function; fxquant_failure() says what failed.
#include "cpu/recorder.h"

#include <utility>

#include "cpu/guarded.h"

namespace fxquant {
namespace {

thread_local Recorder* active = nullptr;

}  // namespace

Recorder* recorder() { return active; }

Tensor allocated(Tensor x) {
  maybe_fail_allocation();
  if (active != nullptr) active->keep_alive(x);
  return x;
}

}  // namespace fxquant

#define FXQ_EXPORT extern "C" __attribute__((visibility("default")))

// Returns a new recording, or null where that failed.
FXQ_EXPORT fxquant::Recorder* fxquant_record_begin() {
  return fxquant::guarded<fxquant::Recorder*>(nullptr, [] {
    fxquant::maybe_fail_allocation();
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
