#include "cpu/amx.h"

#if defined(FXQ_X86) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace fxquant {
namespace {

const char* find_refusal() {
#if defined(FXQ_X86) && defined(__linux__)
  unsigned int a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned int kTile = 1u << 24, kInt8 = 1u << 25;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kTile) == 0 || (d & kInt8) == 0) {
    return "this CPU has no AMX";
  }
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // of arch_prctl
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) != 0) {
    return "the operating system lets no process use AMX";
  }
  return "";
#elif defined(FXQ_X86)
  return "AMX is used on Linux alone";
#else
  return "this CPU has no AMX";
#endif
}

}  // namespace

const char* amx_refusal() {
  static const char* const found = find_refusal();
  return found;
}

const char* tile_loops_refusal() {
  if (*amx_refusal() != 0) return amx_refusal();
#if defined(FXQ_X86)
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx512vnni") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq")) {
    return "this CPU has AMX without AVX-512 VNNI";
  }
#endif
#if !defined(FXQ_AMX)
  return "the compiler that built the kernels knows no AMX";
#else
  return "";
#endif
}

}  // namespace fxquant
