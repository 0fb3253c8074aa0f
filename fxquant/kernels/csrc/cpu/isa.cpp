#include "cpu/isa.h"

#include <atomic>

#include "cpu/amx.h"
#include "cpu/brgemm.h"

namespace fxquant {
namespace {

// What the CPU has.
Isa highest_isa() {
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

bool has_isa(int32_t isa) {
  if (isa == kBrgemm) return highest_isa() == kAvx512Vnni && has_brgemm();
  if (isa == kAmx) return *tile_loops_refusal() == 0;
  if (isa == kAmxEmulated) return true;
  return isa >= kPortable && isa <= highest_isa();
}

// Without tiles the framework's kernels do what ours do.
Isa best_isa() { return *tiles_refusal() == 0 && has_isa(kBrgemm) ? kBrgemm : highest_isa(); }

// Which version of the loops a set runs.
Isa loops_of(Isa isa) {
  if (isa == kAmxEmulated) return highest_isa();
  return isa > kAvx512Vnni ? kAvx512Vnni : isa;
}

std::atomic<Isa> active{best_isa()};
std::atomic<Isa> loops{loops_of(active)};

}  // namespace

Isa active_isa() { return active.load(std::memory_order_relaxed); }
Isa loop_isa() { return loops.load(std::memory_order_relaxed); }

}  // namespace fxquant

// For fxquant/kernels/library.py, through ctypes, for which truth is an int. Numbers are those of the enumeration.
#define FXQ_EXPORT extern "C" __attribute__((visibility("default")))

FXQ_EXPORT int32_t fxquant_has_isa(int32_t isa) { return fxquant::has_isa(isa); }
FXQ_EXPORT const char* fxquant_tiles_refusal() { return fxquant::tiles_refusal(); }
FXQ_EXPORT const char* fxquant_tile_loops_refusal() { return fxquant::tile_loops_refusal(); }
FXQ_EXPORT int32_t fxquant_best_isa() { return fxquant::best_isa(); }
FXQ_EXPORT int32_t fxquant_active_isa() { return fxquant::active_isa(); }

// Returns whether that set can run here; if not, nothing changes.
FXQ_EXPORT int32_t fxquant_set_isa(int32_t isa) {
  if (!fxquant::has_isa(isa)) return false;
  fxquant::active.store(static_cast<fxquant::Isa>(isa), std::memory_order_relaxed);
  fxquant::loops.store(fxquant::loops_of(static_cast<fxquant::Isa>(isa)), std::memory_order_relaxed);
  return true;
}
