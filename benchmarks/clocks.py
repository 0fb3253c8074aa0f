"""Contestants in turns in one process, by the wall clock or by the time that processors worked for it.

On a machine that others use, the second still tells contestants apart where there is one thread: time that others had
does not count. With several threads it counts those that wait, too.
"""

from __future__ import annotations

import statistics
import time
from argparse import ArgumentParser
from collections.abc import Callable, Mapping

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def add_clock(parser: ArgumentParser) -> None:
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: for one thread on a machine in use")


def medians(contestants: Mapping[str, Callable[[], object]], rounds: int, clock: str) -> dict[str, float]:
    """Median milliseconds of a call of each: one timed call in every round, after one that is not timed."""
    now = CLOCKS[clock]
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, call in contestants.items():
            call()
            start = now()
            call()
            times[name].append(now() - start)
    return {name: 1e3 * statistics.median(seconds) for name, seconds in times.items()}
