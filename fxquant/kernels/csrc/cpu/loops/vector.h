// Tells the compiler that no iteration of the next loop reads what another one wrote.
#pragma once

#if defined(__clang__)
#define FXQ_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define FXQ_INDEPENDENT _Pragma("GCC ivdep")
#else
#define FXQ_INDEPENDENT
#endif
