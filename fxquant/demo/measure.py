"""Measuring: contestants take turns in one process, and the median of the rounds counts; the machine."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch


def interleaved_medians(contestants: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median milliseconds of a call of each contestant.

    In every round each has its turn, once untimed so that its weights are in the caches, then timed. Load from
    elsewhere, and clocks that drift, so hit all alike.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, call in contestants.items():
            call()
            start = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - start)
    return {name: 1e3 * statistics.median(times) for name, times in seconds.items()}


def machine() -> dict[str, str]:
    """What the numbers depend on, for the head of a table or a file."""
    return {
        "cpu": f"{cpu_name()} ({', '.join(cpu_features()) or 'no int8 instructions known'})",
        "threads": str(torch.get_num_threads()),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }


def cpu_name() -> str:
    return next(iter(_cpuinfo("model name")), "") or platform.processor() or platform.machine()


INT8_FEATURES = ("avx2", "avx512bw", "avx_vnni", "avx512_vnni", "amx_int8")
"""Names of instruction sets that int8 arithmetic gains from, as Linux spells them, from the oldest to the newest."""


def cpu_features() -> tuple[str, ...]:
    """Which of ``INT8_FEATURES`` this CPU has; empty where it cannot be told."""
    flags = next(iter(_cpuinfo("flags")), "").split()
    return tuple(name for name in INT8_FEATURES if name in flags)


def _cpuinfo(key: str) -> list[str]:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return [line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == key]
