"""How many products of bytes a core can sum per second, at best: the arithmetic limit of every int8 kernel.

    python benchmarks/multiply_rate.py

prints the rate of ``vpdpbusd`` on registers, and on CPUs with AMX that of ``tdpbusd`` on tiles.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

_VECTORS = r"""
#include <cstdint>
// 16 independent chains hide the latency; each instruction sums 64 products. In assembler, since a compiler may well
// move the sums between registers in each round, which is slower than the products are.
#define SUM(chain) "vpdpbusd %%zmm30, %%zmm31, %%zmm" #chain "\n"
extern "C" int multiply(int64_t rounds) {
  asm volatile(
      "1:\n"
      SUM(0) SUM(1) SUM(2) SUM(3) SUM(4) SUM(5) SUM(6) SUM(7)
      SUM(8) SUM(9) SUM(10) SUM(11) SUM(12) SUM(13) SUM(14) SUM(15)
      "dec %0\n"
      "jnz 1b\n"
      : "+r"(rounds)
      :
      : "zmm0", "zmm1", "zmm2", "zmm3", "zmm4", "zmm5", "zmm6", "zmm7", "zmm8", "zmm9", "zmm10", "zmm11", "zmm12",
        "zmm13", "zmm14", "zmm15", "cc");
  return 1;
}
"""
_TILES = r"""
#include <cstdint>
#include <cstring>
#include <sys/syscall.h>
#include <unistd.h>
// Four tiles of sums, each with 16 x 16 x 64 products an instruction: the pairs that a block of two by two tiles has.
extern "C" int multiply(int64_t rounds) {
  if (syscall(SYS_arch_prctl, 0x1023, 18) != 0) return 0;  // the kernel is asked for permission
  alignas(64) uint8_t configuration[64] = {1};
  for (int tile = 0; tile < 8; ++tile) {
    configuration[16 + 2 * tile] = 64;  // bytes of a row
    configuration[48 + tile] = 16;      // rows
  }
  asm volatile(
      "ldtilecfg (%1)\n"
      "1:\n"
      "tdpbusd %%tmm6, %%tmm4, %%tmm0\n"
      "tdpbusd %%tmm7, %%tmm4, %%tmm1\n"
      "tdpbusd %%tmm6, %%tmm5, %%tmm2\n"
      "tdpbusd %%tmm7, %%tmm5, %%tmm3\n"
      "dec %0\n"
      "jnz 1b\n"
      "tilerelease\n"
      : "+r"(rounds)
      : "r"(configuration)
      : "memory", "cc");
  return 1;
}
"""
_FLAGS = ("-O3", "-march=native", "-shared", "-fPIC")
_TRIES = 10


def products_per_second() -> float | None:
    """Of ``vpdpbusd`` on 512 bits, one thread; None without AVX-512 VNNI or a C++ compiler."""
    return _rate(_VECTORS, "avx512_vnni", rounds=500_000, products=16 * 64)


def tile_products_per_second() -> float | None:
    """Of ``tdpbusd`` on tiles, one thread; None without AMX, the kernel's permission or a C++ compiler."""
    return _rate(_TILES, "amx_int8", rounds=100_000, products=4 * 16 * 16 * 64)


def _rate(source: str, feature: str, *, rounds: int, products: int) -> float | None:
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None or feature not in Path("/proc/cpuinfo").read_text().split():
        return None
    with tempfile.TemporaryDirectory() as folder:
        path, library = Path(folder, "multiply.cpp"), Path(folder, "multiply.so")
        path.write_text(source)
        subprocess.run([compiler, *_FLAGS, str(path), "-o", str(library)], check=True)
        multiply = ctypes.CDLL(str(library)).multiply
    multiply.argtypes = (ctypes.c_int64,)
    best = float("inf")
    for _ in range(_TRIES):
        start = time.perf_counter()
        if not multiply(rounds):
            return None
        best = min(best, time.perf_counter() - start)
    return rounds * products / best


def main() -> None:
    rates = {"vpdpbusd": products_per_second(), "tdpbusd": tile_products_per_second()}
    for instruction, rate in rates.items():
        print(
            f"{instruction:<9}", "not here" if rate is None else f"{rate / 1e9:,.0f} * 10^9 products a second and core"
        )


if __name__ == "__main__":
    main()
