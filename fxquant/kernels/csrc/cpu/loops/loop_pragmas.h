// What compilers are told about the next loop. FXQ_INDEPENDENT: no iteration reads what another one wrote.
// FXQ_UNROLL: of few iterations, each to be written out, so that arrays indexed by it can lie in registers.
#pragma once

#if defined(__clang__)
#define FXQ_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#define FXQ_UNROLL _Pragma("unroll")
#elif defined(__GNUC__)
#define FXQ_INDEPENDENT _Pragma("GCC ivdep")
#define FXQ_UNROLL _Pragma("GCC unroll 8")
#else
#define FXQ_INDEPENDENT
#define FXQ_UNROLL
#endif
