"""The programs of ``examples/migration`` before and after they moved from torch.ao: lines changed, quality, speed.

    OMP_NUM_THREADS=1 python benchmarks/migration.py --threads 1
    python benchmarks/migration.py --only eager qat --json out/migration.json

Each program gives a float model (of training: the trained one), the quantized model and an input. Both programs of a
pair run in this process, on weights and data of the same seed; their models are timed in turns. A line counts as
changed if it is in one of the two files alone, once for a line that was replaced; of those, imports count apart.
"""

from __future__ import annotations

import argparse
import difflib
import io
import json
import runpy
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate

from fxquant.measure.noise import sqnr

FOLDER = Path(__file__).resolve().parent.parent / "examples" / "migration"
PROGRAMS = sorted(path.name.removesuffix("_after.py") for path in FOLDER.glob("*_after.py"))
ATTEMPT = 0.02
"""Seconds that the calls of one measurement take together, at least."""


def lines_changed(before: Sequence[str], after: Sequence[str]) -> tuple[int, int]:
    """Count the lines that differ between two programs; of one that was replaced by others, the larger number.

    Returns:
        Lines of imports, and other lines. Empty lines do not count.
    """
    counts = [0, 0]
    in_import = {id(lines): _lines_of_imports(lines) for lines in (before, after)}
    for tag, start, stop, other_start, other_stop in difflib.SequenceMatcher(None, before, after, False).get_opcodes():
        if tag == "equal":
            continue
        sides = (before, range(start, stop)), (after, range(other_start, other_stop))
        for kind in (0, 1):  # imports, others
            counts[kind] += max(
                sum(bool(lines[n].strip()) and (n in in_import[id(lines)]) == (kind == 0) for n in numbers)
                for lines, numbers in sides
            )
    return counts[0], counts[1]


def _lines_of_imports(lines: Sequence[str]) -> set[int]:
    """Return the numbers of the lines of import statements, those in parentheses too."""
    found, inside = set(), False
    for number, line in enumerate(lines):
        if inside or line.startswith(("from ", "import ")):
            found.add(number)
            inside = (inside or "(" in line) and ")" not in line
    return found


def run(name: str, when: str) -> tuple[Any, Any, tuple[Any, ...]]:
    """Run one program; ``when`` is ``"before"`` or ``"after"``."""
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        result: tuple[Any, Any, tuple[Any, ...]] = runpy.run_path(str(FOLDER / f"{name}_{when}.py"))["main"]()
    return result


def milliseconds(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Return the median time of a call of each, measured in turns."""
    counts = {}
    for name, call in calls.items():
        for _ in range(3):
            call()
        start = time.perf_counter()
        call()
        counts[name] = max(1, round(ATTEMPT / max(time.perf_counter() - start, 1e-6)))
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(counts[name]):
                call()
            found[name].append((time.perf_counter() - start) / counts[name] * 1000)
    return {name: statistics.median(times) for name, times in found.items()}


def measure(name: str, rounds: int) -> dict[str, Any]:
    """Measure one pair of programs."""
    sources = [(FOLDER / f"{name}_{when}.py").read_text("utf-8").splitlines() for when in ("before", "after")]
    imports, others = lines_changed(*sources)
    row: dict[str, Any] = {"program": name, "lines": len(sources[0]), "imports": imports, "others": others}
    calls: dict[str, Callable[[], Any]] = {}
    made = {when: run(name, when) for when in ("before", "after")}
    with torch.no_grad():
        for when, (model, quantized, inputs) in made.items():
            row[f"{when} dB"] = sqnr(model(*inputs), quantized(*inputs))
            calls[when] = lambda quantized=quantized, inputs=inputs: quantized(*inputs)  # type: ignore[misc]
            if when == "before":
                calls["float"] = lambda model=model, inputs=inputs: model(*inputs)  # type: ignore[misc]
        row |= {f"{kind} ms": value for kind, value in milliseconds(calls, rounds).items()}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, default=PROGRAMS)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows = [measure(name, arguments.rounds) for name in arguments.only]
    head = {
        "program": "program",
        "lines": "lines",
        "imports": "imports changed",
        "others": "other lines changed",
        "before dB": "torch.ao dB",
        "after dB": "fxquant dB",
        "float ms": "float ms",
        "before ms": "torch.ao ms",
        "after ms": "fxquant ms",
    }
    formats = ("", "", "", "", ".1f", ".1f", ".3f", ".3f", ".3f")
    table = [[row[key] for key in head] for row in rows]
    print(tabulate(table, headers=list(head.values()), floatfmt=formats, tablefmt="github"))
    alone = sum(row["others"] == 0 for row in rows)
    print(f"\n{alone} of {len(rows)} programs change nothing but imports; {arguments.threads} threads.")
    if arguments.json:
        machine = {"torch": torch.__version__, "threads": arguments.threads}
        arguments.json.write_text(json.dumps({"rows": rows, "machine": machine}, indent=1))


if __name__ == "__main__":
    main()
