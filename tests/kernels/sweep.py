"""Runs many calls of all operators in a process that may die: ``python sweep.py guarded|hostile OUT SEEDS``.

``OUT.at`` holds the call that runs; ``OUT`` gets what came of all.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from calls import CALLS, GUARDED, Maker, operator, ordered, same
from guarded import Guarded
from hostile import variants
from torch import Tensor

from fxquant.kernels.library import available_isas, use_isa

WIDTH = 240
MEMORY = 2 << 30
"""Bytes that the process may have beside what it has: larger results are an error, not a night of swapping."""


class Diary:
    """The call that runs now, in a file that outlives the process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT)

    def note(self, *words: object) -> None:
        os.pwrite(self._file, " ".join(map(str, words)).ljust(WIDTH)[:WIDTH].encode(), 0)


def outcome(name: str, given: dict[str, Any]) -> list[Tensor] | str:
    """The results, or the class of the error and its first line."""
    try:
        result = operator(name)(*given.values())
    except Exception as error:  # whatever Python can catch is fine
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return list(result) if isinstance(result, tuple) else [result]


def guarded(diary: Diary, seeds: int) -> Iterator[str]:
    """What was not the same as with other memory."""
    for name, make in [*CALLS.items(), *GUARDED]:
        for seed in range(seeds):
            want = outcome(name, ordered(name, make(Maker(seed))))
            for behind in (True, False):
                memory = Guarded(behind)
                given = ordered(name, make(Maker(seed, memory.place)))
                for isa in available_isas():
                    diary.note(name, make.__name__, "seed", seed, "behind" if behind else "in front", isa)
                    with use_isa(isa):
                        if not same(outcome(name, given), want):
                            yield f"{name}, {make.__name__}, seed {seed}, {isa}"
                del given
                memory.release()


def hostile(diary: Diary, seeds: int) -> Iterator[tuple[str, Any]]:
    """Each call and what came of it; with every instruction set, where there are several."""
    for name, make in CALLS.items():
        for seed in range(seeds):
            for label, given in variants(name, ordered(name, make(Maker(seed)))):
                diary.note(name, "seed", seed, label)
                first = outcome(name, given)
                for isa in () if isinstance(first, str) else available_isas():
                    diary.note(name, "seed", seed, label, isa)
                    with use_isa(isa):
                        if not same(outcome(name, given), first):
                            first = f"instruction sets differ: {isa}"
                yield f"{name}, seed {seed}, {label}", first


def main() -> None:
    kind, out, seeds = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    diary = Diary(out.with_suffix(".at"))
    if kind == "hostile":
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    torch.save(list({"guarded": guarded, "hostile": hostile}[kind](diary, seeds)), out)


if __name__ == "__main__":
    main()
