"""Single layers of two checkouts in turns: which convolution kernel is faster, and by how much.

Each checkout has a process of its own that imports its own package. Both get the same layer, and take short turns on
the same input. The ratio of a layer is the median of the ratios of neighbouring turns: whoever else uses the machine
disturbs both alike.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

TURN = 0.001
"""Seconds of a turn, about: short, so that most turns are not interrupted."""


@dataclass
class TurnsRow:
    """One layer: microseconds of a call."""

    layer: str
    count: int
    before: float
    now: float
    faster: float
    """Median of the ratios of neighbouring turns."""


def geometric_mean(rows: Iterable[TurnsRow]) -> float:
    return math.exp(statistics.fmean(math.log(row.faster) for row in rows))


def in_turns(
    script: Path, checkouts: tuple[Path, Path], layers: dict[Any, int], settings: dict[str, Any], rounds: int
) -> Iterator[TurnsRow]:
    """Measure each layer, a dataclass with a name, that occurs so many times.

    Args:
        script: What both processes run, with ``--serve``: it calls :func:`serve`.
        checkouts: The one before, and the one now.
        layers: How often each layer occurs.
        settings: What both processes are told of threads and instruction set.
        rounds: Turns of each.
    """
    with ExitStack() as stack:
        before, now = (_Process.started(stack, script, checkout, settings) for checkout in checkouts)
        for layer, count in layers.items():
            seconds = max(process.ask(layer=asdict(layer)) for process in (before, now))
            calls = max(1, round(TURN / seconds))
            turns = [(before.ask(calls=calls), now.ask(calls=calls)) for _ in range(rounds)]
            before_us, now_us = (1e6 * statistics.median(times) for times in zip(*turns, strict=True))
            yield TurnsRow(layer.name, count, before_us, now_us, statistics.median(old / new for old, new in turns))


def serve(
    prepare: Callable[[dict[str, Any]], None], make: Callable[[dict[str, Any]], tuple[Callable[[], object], int]]
) -> None:
    """Be one of both processes: answer each line with the seconds of a call.

    Args:
        prepare: Takes the settings.
        make: From the fields of a layer to a function that runs it, and how many times.
    """
    prepare(json.loads(sys.stdin.readline()))
    made: tuple[Callable[[], object], int] | None = None
    for line in sys.stdin:
        question = json.loads(line)
        if "layer" in question:
            made = make(question["layer"])
            made[0]()
        assert made is not None
        call, times = made
        calls = max(1, question.get("calls", 1) // times)
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        print(json.dumps((time.perf_counter() - begin) / calls / times), flush=True)


@dataclass
class _Process:
    process: subprocess.Popen[str]

    @classmethod
    def started(cls, stack: ExitStack, script: Path, checkout: Path, settings: dict[str, Any]) -> _Process:
        if not (checkout / "fxquant" / "kernels").is_dir():
            sys.exit(f"{checkout} is no checkout of fxquant")
        process = subprocess.Popen(
            [sys.executable, script, "--serve"],
            env=os.environ | {"PYTHONPATH": str(checkout.resolve())},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        stack.enter_context(process)
        stack.callback(process.kill)
        assert process.stdin is not None
        print(json.dumps(settings), file=process.stdin, flush=True)
        return cls(process)

    def ask(self, **question: Any) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(question), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            sys.exit("a process has ended; what it said stands above")
        return float(json.loads(line))
