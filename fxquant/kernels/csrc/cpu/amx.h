// AMX: whether this process may use tile registers. No torch.
#pragma once

namespace fxquant {

// Why no instruction of AMX may run here: the CPU or the operating system has none. Empty if they may; then the kernel has
// been asked for permission, which it gives to a process once and for all.
const char* amx_refusal();

// Why our own tile loops do not run on AMX: what amx_refusal() says, or what was not compiled. Empty if they can.
const char* tile_loops_refusal();

}  // namespace fxquant
