"""How many products of bytes a core can sum per second, at best: the arithmetic limit of every int8 kernel."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

_SOURCE = """
#include <immintrin.h>
#include <cstdint>
// 16 independent chains hide the latency; each instruction sums 64 products.
extern "C" int32_t multiply(int64_t rounds) {
  __m512i sums[16], x = _mm512_set1_epi8(3), w = _mm512_set1_epi8(2);
  for (auto& sum : sums) sum = _mm512_setzero_si512();
  for (int64_t i = 0; i < rounds; ++i) {
    asm volatile("" : "+v"(x), "+v"(w));
    for (auto& sum : sums) sum = _mm512_dpbusd_epi32(sum, x, w);
  }
  for (int i = 1; i < 16; ++i) sums[0] = _mm512_add_epi32(sums[0], sums[i]);
  return _mm512_reduce_add_epi32(sums[0]);
}
"""
_FLAGS = ("-O3", "-march=native", "-fno-unroll-loops", "-shared", "-fPIC")
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
