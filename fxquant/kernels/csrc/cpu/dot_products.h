// Instruction sets of ARM. isa.h has those of x86; on ARM all loops run as kPortable, which compilers vectorise for the NEON that
// each 64-bit ARM has, but loops that multiply bytes, which have a version of their own for each of these sets.
//
// Such a loop is declared and called by the macros that end in _WITH_DOT_PRODUCTS. On x86 they are those that end in _WITH_VNNI.
#pragma once
#include "cpu/isa.h"

namespace fxquant {

enum Neon : int32_t {
  kNoDotProducts = 0,
  kNeonDotprod = 1,  // products of bytes by sdot
  kNeonI8mm = 2      // by sudot and usdot
};

// The set that loops of products run now: the best for this CPU, unless another one was chosen through fxquant_set_isa.
Neon loop_neon();

}  // namespace fxquant

#if defined(FXQ_ARM)
#define FXQ_DECLARE_LOOP_WITH_DOT_PRODUCTS(name, parameters)     \
  FXQ_DECLARE_LOOP(name, parameters)                             \
  namespace fxquant {                                            \
  namespace neon_dotprod { void name parameters; }               \
  namespace neon_i8mm { void name parameters; }                  \
  }
#define FXQ_LOOP_WITH_DOT_PRODUCTS(name)                                       \
  (::fxquant::loop_neon() == ::fxquant::kNeonI8mm ? ::fxquant::neon_i8mm::name         \
   : ::fxquant::loop_neon() == ::fxquant::kNeonDotprod ? ::fxquant::neon_dotprod::name \
                                                       : ::fxquant::portable::name)
#else
#define FXQ_DECLARE_LOOP_WITH_DOT_PRODUCTS(name, parameters) FXQ_DECLARE_LOOP_WITH_VNNI(name, parameters)
#define FXQ_LOOP_WITH_DOT_PRODUCTS(name) FXQ_LOOP_WITH_VNNI(name)
#endif
