// Products of small matrices of bytes by the framework: oneDNN compiles them for the CPU at hand, and where that has AMX
// they are made of tiles, 16 rows by 64 bytes at once. No torch: for loops and bindings alike.
#pragma once
#include <cstdint>

namespace fxquant {

// Whether libtorch_cpu has it, and multiplies right. Looked up once; false as well from when on it has once refused.
bool has_brgemm();

// Why no tiles multiply here: the CPU, the operating system, the environment or the framework has none. Empty if they do.
const char* tiles_refusal();

// The least that is worth a call. A tile has 16 rows and 16 columns of sums, and takes 64 products of each at once, eight
// times as fast as our loops with VNNI where it is full. A call costs some 100 cycles beside, and writes sums to memory
// that our loops keep in registers, which 64 products of each pay for; 8 rows or columns fill half a tile.
struct BrgemmLimits {
  int64_t rows = 8;
  int64_t columns = 8;
  int64_t k_size = 64;
};

// Whether products of this size go to the framework now.
bool prefers_brgemm(int64_t rows, int64_t columns, int64_t k_size);

// c = a b, or c += a b, exact in int32. False, and c is as before, where the framework refuses: a user may switch oneDNN
// off at any time.
//   a: [rows][k_size] unsigned bytes, `row_stride` from one row to the next    b: [k_size / 4][columns][4] signed bytes
//   c: [rows][columns]
// For every combination of the numbers each thread keeps some 40 KB of compiled code: there must be few of them.
bool brgemm(int64_t rows, int64_t columns, int64_t k_size, const uint8_t* a, int64_t row_stride, const int8_t* b,
            bool adds, int32_t* c);

// After the last product of a thread for now: gives tiles back to whoever needs them next.
void brgemm_release();

}  // namespace fxquant
