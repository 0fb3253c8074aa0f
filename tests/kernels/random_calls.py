"""Random valid calls of every native operator, on every instruction set, against its reference, to the bit.

    python random_calls.py --calls 1000
    python random_calls.py --calls 100000 --operator conv2d softmax --isa amx_emulated --json out/calls.json

A call is one set of random arguments: the reference computes it once, and the kernel once with each instruction set.
Results lie in the JSON file, and a later run of the same kernels goes on where they end, with other arguments. Beside
it, in a file ``.at``, is the call that runs, in case it ends the process. ``make calls`` sets the path; ``make
sanitize`` does the same with a library that checks each access to memory.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from calls import CALLS, GUARDED, Arguments, Maker, operator, ordered
from chain_calls import Chain, chain
from sweep import Diary
from tabulate import tabulate
from torch import Tensor

from fxquant.kernels.call import CALLS as RECORDS
from fxquant.kernels.library import CPU_ISAS, available_isas, native_status, set_isa, use_isa
from fxquant.kernels.sources import fingerprint_in
from fxquant.runtime.program import Program

AT_ONCE = 50
"""Calls of one kernel, after which it is the turn of the next one: a run that is ended early has called all."""
MOST_WRONG = 20
"""Of one kernel, after which no more of it is called."""
SUMS = {"fake_quantize_folded_backward": (1,), "fake_quantize_learnable_backward": (1, 2)}
"""Operator -> which of its results are float64 sums of which no order is defined: these may be rounded another way."""
ONE_ROUNDING = 2e-7
"""Of float32, relative."""
OTHER_LOOPS = ("brgemm", "amx", "amx_emulated")
"""Instruction sets with which a binding launches other loops; the others are versions of the same ones."""
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Outcome = tuple[Tensor, ...] | str
"""Results, or the class of an error."""


class Case(Protocol):
    """One set of arguments."""

    def reference(self) -> Any: ...

    def native(self) -> Any: ...


class OperatorCase:
    """A call of an operator."""

    def __init__(self, name: str, given: Arguments) -> None:
        self._name, self._given, self._operator = name, ordered(name, given), operator(name)

    def reference(self) -> Any:
        if self._name in RECORDS:
            return RECORDS[self._name](**self._given).reference()
        # The operator beside it gives the mask too, and has the record of both.
        base, _, overload = self._name.partition(".")
        return RECORDS[f"{base}_cachemask{overload and '.'}{overload}"](**self._given).reference()[0]

    def native(self) -> Any:
        return self._operator(*self._given.values())


class ChainCase:
    """A call of a program that is one chain, or several."""

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self.reference = chain.reference
        self._programs: dict[str, Program] = {}

    def native(self) -> Any:
        """By the program that was recorded with this set, or with another one of the same loops."""
        isa = native_status().cpu_isa
        loops = isa if isa in OTHER_LOOPS else ""
        if loops not in self._programs:
            self._programs[loops] = self._chain.program()
        return self._programs[loops]([self._chain.x])[0]


def of_operator(name: str, make: Callable[[Maker], Arguments]) -> Callable[[int], Case]:
    return lambda seed: OperatorCase(name, make(Maker(seed, wide=True)))


KERNELS: dict[str, Callable[[int], Case]] = {
    **{name: of_operator(name, make) for name, make in CALLS.items()},
    **{f"{name}, {make.__name__}": of_operator(name, make) for name, make in GUARDED},
    "chain": lambda seed: ChainCase(chain(Maker(seed, wide=True))),
}
"""A native operator, maybe only with arguments that have loops of their own, or a chain -> what makes a call."""


@dataclass
class Row:
    """The calls of one kernel."""

    calls: int = 0
    refused: int = 0
    """Of these, those that the reference and the kernel refuse."""
    native: int = 0
    """Runs of the kernel: one for each call and instruction set."""
    first_seed: int = 0
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)


@dataclass
class Record:
    """The calls of all kernels of one native library."""

    sources: str
    """Fingerprint of the C++ sources that the library was built from."""
    sanitizers: bool
    isas: list[str]
    commits: list[str] = field(default_factory=list)
    """Of the working tree during the runs."""
    kernels: dict[str, Row] = field(default_factory=dict)

    @property
    def key(self) -> tuple[Any, ...]:
        return self.sources, self.sanitizers, self.isas


def outcome(call: Callable[[], Any]) -> Outcome:
    try:
        result = call()
    except Exception as error:  # what one side refuses the other one has to refuse, too
        return type(error).__name__
    return result if isinstance(result, tuple) else (result,)


def same(one: Outcome, other: Outcome, sums: Sequence[int] = ()) -> bool:
    """Whether both are errors, or tensors of equal dtypes, shapes and bits; every NaN is one.

    Results of the numbers ``sums`` may differ by a rounding of their largest value.
    """
    if isinstance(one, str) or isinstance(other, str):
        return isinstance(one, str) and isinstance(other, str)
    return len(one) == len(other) and all(
        (_close if number in sums else _same_tensor)(a, b) for number, (a, b) in enumerate(zip(one, other, strict=True))
    )


def _close(a: Tensor, b: Tensor) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    largest = float(b[b.isfinite()].abs().max()) if b.isfinite().any() else 0.0
    return torch.allclose(a, b, rtol=ONE_ROUNDING, atol=ONE_ROUNDING * largest, equal_nan=True)


def _same_tensor(a: Tensor, b: Tensor) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if not a.dtype.is_floating_point:
        return torch.equal(a, b)
    nan, bits = a.isnan(), BITS[a.element_size()]
    if nan.any():
        a, b = (each.masked_fill(each.isnan(), 0) for each in (a, b))
        return torch.equal(nan, b.isnan() | nan) and torch.equal(a.view(bits), b.view(bits))
    return torch.equal(a.view(bits), b.view(bits))


def call_some(name: str, row: Row, count: int, isas: Sequence[str], diary: Diary) -> None:
    """Make the next ``count`` calls of a kernel, and note them in its row."""
    start, make = time.perf_counter(), KERNELS[name]
    seeds = range(row.first_seed + row.calls, row.first_seed + row.calls + count)
    cases = []
    for seed in seeds:
        diary.note(name, "seed", seed, "reference")
        case = make(seed)
        cases.append((seed, case, outcome(case.reference)))
    for isa in isas:
        set_isa(isa)
        for seed, case, want in cases:
            diary.note(name, "seed", seed, isa)
            got = outcome(case.native)
            if not same(got, want, SUMS.get(name, ())):
                row.wrong.append(f"{name}, seed {seed}, {isa}: {_told(got)}, the reference: {_told(want)}")
                print(row.wrong[-1], flush=True)
    row.calls += count
    row.native += count * len(isas)
    row.refused += sum(isinstance(want, str) for _, _, want in cases)
    row.seconds = round(row.seconds + time.perf_counter() - start, 3)


def _told(result: Outcome) -> str:
    return result if isinstance(result, str) else "other bits"


def call_all(
    record: Record, names: Sequence[str], calls: int, seconds: float, diary: Diary, save: Callable[[], None]
) -> None:
    """Call kernels in turns until each has ``calls`` calls, or the time is over."""
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        left = [name for name in names if record.kernels[name].calls < calls]
        left = [name for name in left if len(record.kernels[name].wrong) < MOST_WRONG]
        if not left:
            return
        for name in left:
            row = record.kernels[name]
            call_some(name, row, min(AT_ONCE, calls - row.calls), record.isas, diary)
            if time.perf_counter() - start >= seconds:
                break
        save()


def commit() -> str:
    """The commit of the folder that the command runs in; empty where there is no repository."""
    done = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return done.stdout.strip()


@contextmanager
def hold(path: Path) -> Iterator[None]:
    """Keep the results for this process: two would each write what it has counted."""
    with open(path.with_suffix(".lock"), "w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(f"another run writes {path}: wait for it, or name another file by --json") from None
        yield


def read(path: Path) -> list[Record]:
    if not path.exists():
        return []
    found = json.loads(path.read_text(encoding="utf-8"))
    return [Record(**{**each, "kernels": {k: Row(**row) for k, row in each["kernels"].items()}}) for each in found]


def write(path: Path, records: Sequence[Record]) -> None:
    """Write all at once, so that an end of the process leaves the file whole."""
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps([asdict(each) for each in records], indent=1) + "\n", encoding="utf-8")
    os.replace(beside, path)


def chosen(operators: Sequence[str]) -> list[str]:
    """All kernels of the operators; of all of them if none is named."""
    return [name for name in KERNELS if not operators or name in operators or name.split(",")[0] in operators]


def main(arguments: list[str] | None = None) -> int:
    """Returns:
    1 if any result is not that of the reference, else 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1000, help="of each kernel, those of earlier runs included")
    parser.add_argument("--seed", type=int, default=1, help="of the first call of each kernel; the others follow")
    parser.add_argument("--operator", nargs="+", default=[], choices=list(KERNELS), metavar="NAME", help="only these")
    parser.add_argument("--isa", nargs="+", choices=CPU_ISAS, help="instruction sets; the default are all of this CPU")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which no further calls begin")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, default=Path("out/calls.json"), help="where results lie")
    options = parser.parse_args(arguments)
    if not available_isas():
        print(f"no native kernels: {native_status().reason}", file=sys.stderr)
        return 1
    torch.set_num_threads(options.threads)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    with hold(options.json):
        return run(options)


def run(options: argparse.Namespace) -> int:
    """Go on where the file ends, and print what is in it then."""
    records, here = read(options.json), commit()
    record = Record(
        fingerprint_in(native_status().paths[0]),
        os.environ.get("FXQUANT_SANITIZE") == "1",
        list(options.isa or available_isas()),
    )
    record = next((each for each in records if each.key == record.key), record)
    if record not in records:
        records.append(record)
    if here not in record.commits:
        record.commits.append(here)
    names = chosen(options.operator)
    for name in names:
        record.kernels.setdefault(name, Row(first_seed=options.seed))
    diary = Diary(options.json.with_suffix(".at"))
    with use_isa(native_status().cpu_isa):  # the set that was in use runs again afterwards
        call_all(record, names, options.calls, options.seconds, diary, lambda: write(options.json, records))
    write(options.json, records)
    rows = {name: record.kernels[name] for name in names}
    print(table(rows))
    print(f"instruction sets: {', '.join(record.isas)}; sanitizers: {'yes' if record.sanitizers else 'no'}; {here}")
    return 1 if any(row.wrong for row in rows.values()) else 0


def table(rows: dict[str, Row]) -> str:
    body = [(name, row.calls, row.refused, row.native, row.seconds, len(row.wrong)) for name, row in rows.items()]
    body.append(("all", *(sum(column) for column in list(zip(*body, strict=True))[1:])))
    return tabulate(body, headers=("kernel", "calls", "refused", "native runs", "seconds", "wrong"), floatfmt=".1f")


if __name__ == "__main__":
    sys.exit(main())
