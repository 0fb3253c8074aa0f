// The vector instructions of x86 as functions, where the instruction set has AVX2. Nobody else includes their header.
#pragma once
#if defined(__AVX2__)
// GCC 12 warns of registers that its own header leaves undefined on purpose.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#else
#include <immintrin.h>
#endif
#endif
