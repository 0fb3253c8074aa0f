// Instruction sets. Each loop (cpu/loops/*.cpp of every family) is compiled once for each set that changes it (is_compiled_for
// in setup.py), in a namespace of its name. A binding calls through FXQ_LOOP, which picks by loop_isa().
#pragma once
#include <cstdint>

namespace fxquant {

// kBrgemm: kAvx512Vnni, with large products left to oneDNN (brgemm.h).
// kAmx: kAvx512Vnni, with products of our own tile loops.
// kAmxEmulated: the tile loops on tiles in memory (tiles.h), all other loops as with the best set below kBrgemm. It runs on
// every CPU, for tests.
enum Isa : int32_t {
  kPortable = 0,
  kAvx2 = 1,
  kAvx512 = 2,
  kAvx512Vnni = 3,
  kBrgemm = 4,
  kAmx = 5,
  kAmxEmulated = 6
};

// The set that runs now: the best for this CPU, unless another one was chosen through fxquant_set_isa.
Isa active_isa();
// Which version of a loop it runs: kPortable to kAvx512Vnni.
Isa loop_isa();
// Whether products run on tiles.
inline bool uses_tile_loops() { return active_isa() >= kAmx; }

}  // namespace fxquant

// Declares a loop for every set. To be used in a header of cpu/loops, inside no namespace:
//   FXQ_DECLARE_LOOP(dequantize_loop, (const DequantizeArgs& args, int64_t begin, int64_t end))
// and called by the binding as
//   FXQ_LOOP(dequantize_loop)(args, begin, end)
// A loop that uses instructions of VNNI (its source asks __AVX512VNNI__) is declared and called by the macros that end in
// _WITH_VNNI. It has a version for avx512_vnni. Of every other loop, avx512_vnni and the sets above it run the avx512 version.
// A loop on tiles, whose source includes tiles.h, says FXQ_DECLARE_TILE_LOOP and FXQ_TILE_LOOP. It is compiled for amx, and
// with emulated tiles for portable and avx512_vnni.
#if defined(FXQ_X86)
#define FXQ_DECLARE_LOOP(name, parameters)                       \
  namespace fxquant {                                            \
  namespace portable { void name parameters; }                   \
  namespace avx2 { void name parameters; }                       \
  namespace avx512 { void name parameters; }                     \
  }
#define FXQ_LOOP(name)                                           \
  (::fxquant::loop_isa() >= ::fxquant::kAvx512 ? ::fxquant::avx512::name \
   : ::fxquant::loop_isa() == ::fxquant::kAvx2 ? ::fxquant::avx2::name   \
                                                 : ::fxquant::portable::name)
#define FXQ_DECLARE_LOOP_WITH_VNNI(name, parameters)                  \
  FXQ_DECLARE_LOOP(name, parameters)                             \
  namespace fxquant {                                            \
  namespace avx512_vnni { void name parameters; }                \
  }
#define FXQ_LOOP_WITH_VNNI(name)                                      \
  (::fxquant::loop_isa() >= ::fxquant::kAvx512Vnni ? ::fxquant::avx512_vnni::name : FXQ_LOOP(name))
#define FXQ_DECLARE_TILE_LOOP(name, parameters)                  \
  namespace fxquant {                                            \
  namespace portable { void name parameters; }                   \
  namespace avx512_vnni { void name parameters; }                \
  namespace amx { void name parameters; }                        \
  }
#define FXQ_EMULATED_TILE_LOOP(name) \
  (::fxquant::loop_isa() >= ::fxquant::kAvx512Vnni ? ::fxquant::avx512_vnni::name : ::fxquant::portable::name)
#if defined(FXQ_AMX)
#define FXQ_TILE_LOOP(name) \
  (::fxquant::active_isa() == ::fxquant::kAmx ? ::fxquant::amx::name : FXQ_EMULATED_TILE_LOOP(name))
#else
#define FXQ_TILE_LOOP(name) FXQ_EMULATED_TILE_LOOP(name)
#endif
#else
#define FXQ_DECLARE_LOOP(name, parameters)                       \
  namespace fxquant {                                            \
  namespace portable { void name parameters; }                   \
  }
#define FXQ_LOOP(name) (::fxquant::portable::name)
#define FXQ_DECLARE_LOOP_WITH_VNNI(name, parameters) FXQ_DECLARE_LOOP(name, parameters)
#define FXQ_LOOP_WITH_VNNI(name) FXQ_LOOP(name)
#define FXQ_DECLARE_TILE_LOOP(name, parameters) FXQ_DECLARE_LOOP(name, parameters)
#define FXQ_TILE_LOOP(name) FXQ_LOOP(name)
#endif
