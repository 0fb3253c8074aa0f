// What compilers are told about the next loop. FXQ_INDEPENDENT: no iteration reads what another one wrote.
// FXQ_UNROLL: of few iterations, each to be written out, so that arrays indexed by it can lie in registers.
#pragma once

// For what handles arrays that shall never lie in memory.
#define FXQ_INLINE __attribute__((always_inline)) inline

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
