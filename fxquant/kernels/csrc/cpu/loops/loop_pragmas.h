// What compilers are told about loops and functions. FXQ_INDEPENDENT: no iteration of the next loop reads what another one
// wrote. FXQ_UNROLL: it has few iterations, each to be written out, so that arrays indexed by it can lie in registers.
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

// Marks methods that loops of several instruction sets call: the linker would merge the versions of all sets into one.
// Marks also functions on arrays of registers, which must not go through memory.
#define FXQ_INLINE __attribute__((always_inline)) inline
