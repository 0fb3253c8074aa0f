"""How every benchmark measures: contestants take turns in one process, and the median of the rounds counts."""

from __future__ import annotations

import math
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import torch


def interleaved_medians(contestants: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median milliseconds of a call of each contestant.

    In every round each has its turn, once untimed so that its weights are in the caches, then timed. Load from elsewhere,
    and clocks that drift, so hit all alike.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, call in contestants.items():
            call()
            start = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - start)
    return {name: 1e3 * statistics.median(times) for name, times in seconds.items()}


def geometric_mean(values: Iterable[float]) -> float:
    return statistics.geometric_mean(values)


def sqnr(reference: torch.Tensor, other: torch.Tensor) -> float:
    """Signal to quantization noise of ``other``, in dB: 10·log10(Σ reference² / Σ (reference - other)²)."""
    signal, noise = reference.double().square().sum().item(), (reference.double() - other.double()).square().sum().item()
    return math.inf if noise == 0 else 10 * math.log10(signal / noise)


def machine() -> dict[str, object]:
    """What the numbers depend on, for the head of a table and the JSON file."""
    return {
        "cpu": _cpu_name(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    flags = next((line for line in lines if line.startswith("flags")), "").split()
    sets = [name for name in ("avx512_vnni", "amx_int8") if name in flags]
    return " ".join([names[0] if names else platform.processor() or platform.machine(), *sets])
