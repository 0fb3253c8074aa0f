#include "isa.h"

#include <atomic>

namespace fxquant {
namespace {

Isa best_isa() {
#if defined(FXQ_X86)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (avx2 && avx512 && __builtin_cpu_supports("avx512vnni")) return kAvx512Vnni;
  if (avx2 && avx512) return kAvx512;
  if (avx2) return kAvx2;
#endif
  return kPortable;
}

std::atomic<Isa> active{best_isa()};

}  // namespace

Isa active_isa() { return active.load(std::memory_order_relaxed); }

}  // namespace fxquant

// For fxquant/kernels/library.py, through ctypes. Numbers are those of the enumeration.
#define FXQ_EXPORT extern "C" __attribute__((visibility("default")))

FXQ_EXPORT int32_t fxquant_best_isa() { return fxquant::best_isa(); }
FXQ_EXPORT int32_t fxquant_active_isa() { return fxquant::active_isa(); }

// Returns whether the CPU has that set; if not, nothing changes.
FXQ_EXPORT bool fxquant_set_isa(int32_t isa) {
  if (isa < fxquant::kPortable || isa > fxquant::best_isa()) return false;
  fxquant::active.store(static_cast<fxquant::Isa>(isa), std::memory_order_relaxed);
  return true;
}
