"""How many products of bytes a core can sum per second, at best: the arithmetic limit of every int8 kernel."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

_SOURCE = r"""
#include <cstdint>
// 16 independent chains hide the latency; each instruction sums 64 products. In assembler, since a compiler may well
// move the sums between registers in each round, which is slower than the products are.
#define SUM(chain) "vpdpbusd %%zmm30, %%zmm31, %%zmm" #chain "\n"
extern "C" void multiply(int64_t rounds) {
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
}
"""
_FLAGS = ("-O3", "-march=native", "-shared", "-fPIC")
_PRODUCTS_PER_ROUND = 16 * 64


def products_per_second() -> float | None:
    """Of ``vpdpbusd`` on 512 bits, one thread; None without AVX-512 VNNI or a C++ compiler."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None or "avx512_vnni" not in Path("/proc/cpuinfo").read_text():
        return None
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "multiply.cpp"), Path(folder, "multiply.so")
        source.write_text(_SOURCE)
        subprocess.run([compiler, *_FLAGS, str(source), "-o", str(library)], check=True)
        multiply = ctypes.CDLL(str(library)).multiply
    multiply.argtypes = (ctypes.c_int64,)
    best = float("inf")
    for _ in range(10):
        start = time.perf_counter()
        multiply(500_000)
        best = min(best, time.perf_counter() - start)
    return 500_000 * _PRODUCTS_PER_ROUND / best
