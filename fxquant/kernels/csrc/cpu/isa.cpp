#include "cpu/isa.h"

#include <atomic>

#if defined(FXQ_ARM) && defined(__linux__)
#include <sys/auxv.h>
#endif

#include "cpu/amx.h"
#include "cpu/brgemm.h"
#include "cpu/dot_products.h"

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

Neon highest_neon() {
#if defined(FXQ_ARM) && defined(__linux__)
  constexpr unsigned long kDotprod = 1ul << 20, kI8mm = 1ul << 13;  // HWCAP_ASIMDDP and HWCAP2_I8MM of <asm/hwcap.h>
  if ((getauxval(AT_HWCAP) & kDotprod) == 0) return kNoDotProducts;
  return (getauxval(AT_HWCAP2) & kI8mm) != 0 ? kNeonI8mm : kNeonDotprod;
#else
  return kNoDotProducts;
#endif
}

// Numbers of fxquant/kernels/library.py: those of Isa, then those of Neon.
constexpr int32_t kNeonNumbers = kAmxEmulated;

bool is_neon(int32_t isa) { return isa > kNeonNumbers; }

bool has_isa(int32_t isa) {
  if (is_neon(isa)) return isa - kNeonNumbers <= highest_neon();
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
std::atomic<Neon> neon{highest_neon()};

// The number of what is active.
int32_t number_of(Isa isa, Neon of_products) {
  return isa == kPortable && of_products != kNoDotProducts ? kNeonNumbers + of_products : static_cast<int32_t>(isa);
}

}  // namespace

Isa active_isa() { return active.load(std::memory_order_relaxed); }
Isa loop_isa() { return loops.load(std::memory_order_relaxed); }
Neon loop_neon() { return neon.load(std::memory_order_relaxed); }

}  // namespace fxquant

// For fxquant/kernels/library.py, through ctypes, for which truth is an int. Numbers are those of the enumeration.
#define FXQ_EXPORT extern "C" __attribute__((visibility("default")))

FXQ_EXPORT int32_t fxquant_has_isa(int32_t isa) { return fxquant::has_isa(isa); }
FXQ_EXPORT const char* fxquant_tiles_refusal() { return fxquant::tiles_refusal(); }
FXQ_EXPORT const char* fxquant_tile_loops_refusal() { return fxquant::tile_loops_refusal(); }
FXQ_EXPORT int32_t fxquant_best_isa() { return fxquant::number_of(fxquant::best_isa(), fxquant::highest_neon()); }
FXQ_EXPORT int32_t fxquant_active_isa() { return fxquant::number_of(fxquant::active_isa(), fxquant::loop_neon()); }

// Returns whether that set can run here; if not, nothing changes.
FXQ_EXPORT int32_t fxquant_set_isa(int32_t isa) {
  if (!fxquant::has_isa(isa)) return false;
  const auto chosen = fxquant::is_neon(isa) ? fxquant::kPortable : static_cast<fxquant::Isa>(isa);
  const auto of_products = fxquant::is_neon(isa) ? static_cast<fxquant::Neon>(isa - fxquant::kNeonNumbers)
                           : isa == fxquant::kPortable ? fxquant::kNoDotProducts
                                                       : fxquant::highest_neon();
  fxquant::active.store(chosen, std::memory_order_relaxed);
  fxquant::loops.store(fxquant::loops_of(chosen), std::memory_order_relaxed);
  fxquant::neon.store(of_products, std::memory_order_relaxed);
  return true;
}
