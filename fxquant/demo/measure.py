"""Measuring: contestants take turns in one process, and the median of the rounds counts; the machine."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from fxquant.measure.timing import interleaved_medians as medians_in_seconds


def interleaved_medians(contestants: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median milliseconds of a call of each contestant, as ``fxquant.measure.timing`` measures: in turns."""
    return {name: 1e3 * seconds for name, seconds in medians_in_seconds(contestants, rounds).items()}


def machine() -> dict[str, str]:
    """Return the facts that numbers depend on, for the head of a table or a file."""
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
    """Return those of ``INT8_FEATURES`` that this CPU has; none where it cannot be told."""
    flags = next(iter(_cpuinfo("flags")), "").split()
    return tuple(name for name in INT8_FEATURES if name in flags)


def _cpuinfo(key: str) -> list[str]:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return [line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == key]
