"""Runs the loops of the CPU as a plain program, without torch: here, and for ARM under an emulator.

``tests/kernels/plain_loops.cpp`` makes random arguments, the same on every machine. It compares the instruction sets of
the CPU that it runs on with the portable one, and prints a digest of what that computed. So a program for 64-bit ARM
says two things: that its sets agree with its portable one to the bit, and, by its digests, that this agrees with the
portable set here, which the tests of kernels compare with the reference.

    python scripts/plain_loops.py --cases 100

needs Debian's ``g++-aarch64-linux-gnu`` and ``qemu-user``.

    python scripts/plain_loops.py --sanitize --cases 100000

runs the loops here alone, compiled for AddressSanitizer and UBSan: each operand ends where its memory ends, and what
reads or writes beyond it ends the program. One process per core takes a part of the cases.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "tests" / "kernels" / "plain_loops.cpp"
CROSS, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
SYSTEM = "/usr/aarch64-linux-gnu"
"""Where Debian has the libraries of the other machine."""
CPUS = {"cortex-a53": "portable", "neoverse-n1": "neon_dotprod", "max": "neon_i8mm"}
"""CPUs of the emulator, and the best instruction set of each."""
STEMS = (
    *("conv2d", "conv2d_tiles", "depthwise", "matmul", "matmul_tiles", "weight_only_linear", "softmax", "layer_norm"),
    *("quantize", "quantize_per_token", "recurrent_steps"),
)
"""Loops that the program calls."""
LOOPS = 9
"""Kinds of calls in a case."""
STRETCH = 500
"""Cases of one process of the sanitizers."""
CHOICE = ("cpu-isa", "cpu-amx", "cpu-brgemm")
"""What chooses an instruction set."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a program printed."""

    digests: tuple[str, ...]
    """A line for each case."""
    differences: tuple[str, ...]
    """A line for each result of a set that is not that of the portable one."""
    summary: str

    @classmethod
    def of(cls, done: subprocess.CompletedProcess[str]) -> Outcome:
        """Read what a program printed.

        Raises:
            SystemExit: it did not come to its end.
        """
        *lines, last = done.stdout.splitlines() or [""]
        if not last.startswith("sets: "):
            raise SystemExit(f"fxquant: the plain program ended with {done.returncode}\n{done.stderr[:4000]}")
        differences = tuple(line for line in lines if "differs" in line)
        return cls(tuple(line for line in lines if "differs" not in line), differences, last.removeprefix("sets: "))


def builder(machine: str, sanitize: bool = False) -> ModuleType:
    """``setup.py`` as a module that compiles for a kind of machine, for sanitizers if asked."""
    spec = spec_from_file_location("fxquant_setup", ROOT / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    vars(module).update(is_x86=lambda: machine == "x86_64", is_arm=lambda: machine == "aarch64")
    if sanitize:
        vars(module)["CXX_FLAGS"] += module.SANITIZE_FLAGS
    if machine != platform.machine():  # as scripts/wheels.py, whose objects these are
        vars(module)["CXX_FLAGS"] = tuple(flag for flag in module.CXX_FLAGS if flag != "-Werror")
    return module


def missing() -> str:
    """Name what the program for ARM lacks here; empty if nothing."""
    lacking = [name for name in (CROSS, EMULATOR) if shutil.which(name) is None]
    return f"no {' and no '.join(lacking)} (apt-get install g++-aarch64-linux-gnu qemu-user)" if lacking else ""


def build(machine: str, cxx: str, target: Path, sanitize: bool = False) -> Path:
    """Compile what is not compiled yet, link the program, and return its path."""
    setup_py = builder(machine, sanitize)
    steps = setup_py.cpu_steps(cxx, setup_py.torch_folder())
    wanted = [step for step in steps if step.stem in CHOICE or step.stem.partition("-")[2] in STEMS]
    wanted = [step for step in wanted if step.stem in CHOICE or not step.stem.startswith("cpu-")]
    defines = next(tuple(word for word in step.command if word.startswith("-DFXQ_")) for step in wanted)
    target.parent.mkdir(parents=True, exist_ok=True)
    checks = setup_py.SANITIZE_FLAGS if sanitize else ()
    command = [cxx, "-std=c++17", "-O1", *checks, *defines, *setup_py.OUR_HEADERS, str(SOURCE)]
    setup_py.run([*command, *map(str, setup_py.compile_all(wanted)), "-ldl", "-o", str(target)])
    return target


def run(program: Path, cases: int, cpu: str | None = None, first: int = 0) -> Outcome:
    """Run cases from a first one on, here or as on a CPU of the emulator."""
    before = [] if cpu is None else [EMULATOR, "-L", SYSTEM, "-cpu", cpu]
    command = [*before, str(program), str(cases), str(first)]
    return Outcome.of(subprocess.run(command, capture_output=True, text=True, check=False))


def compared(cases: int) -> tuple[list[str], list[str]]:
    """Run the program here and on each CPU of the emulator.

    Returns:
        A line about each CPU, and a line for whatever is wrong.
    """
    folder = ROOT / "build" / "plain_loops"
    here = run(build(platform.machine(), builder(platform.machine()).find_cxx(), folder / "here"), cases)
    said, wrong = [f"{platform.machine()}: {here.summary}"], list(here.differences)
    program = build("aarch64", str(shutil.which(CROSS)), folder / "aarch64")
    for cpu, best in CPUS.items():
        there = run(program, cases, cpu)
        others = sum(a != b for a, b in zip(here.digests, there.digests, strict=True))
        said.append(f"aarch64, {cpu}: {there.summary}; {others} of {len(there.digests)} digests are not those of here")
        wrong += [f"{cpu}: {line}" for line in there.differences]
        wrong += [f"{cpu}: {line} is not that of here" for line in there.digests if line not in here.digests]
        if f"best {best};" not in there.summary:
            wrong.append(f"{cpu}: the best set should be {best}")
    return said, wrong


def sanitized(cases: int, first: int) -> tuple[list[str], list[str]]:
    """Run the program here under AddressSanitizer and UBSan, in stretches of cases, with a bar.

    Returns:
        A line about each instruction set that ran, and a line for whatever is wrong.

    Raises:
        SystemExit: a sanitizer ended the program.
    """
    cxx = builder(platform.machine()).find_cxx()
    program = build(platform.machine(), cxx, ROOT / "build" / "plain_loops" / "sanitized", sanitize=True)
    starts = range(first, first + cases, STRETCH)
    wrong: list[str] = []
    digests, sets = 0, ""
    with ThreadPoolExecutor(os.cpu_count()) as pool, tqdm(total=cases, unit=" cases", disable=None) as bar:
        todo = [pool.submit(run, program, min(STRETCH, first + cases - at), first=at) for at in starts]
        for done in as_completed(todo):
            outcome = done.result()
            digests += len(outcome.digests)
            sets = outcome.summary.partition(";")[0]
            wrong += outcome.differences
            bar.update(len(outcome.digests) // LOOPS)
    return [f"{platform.machine()}: {sets}; {digests} calls, each with every set, {len(wrong)} differences"], wrong


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--cases", type=int, default=100, help="random calls of each loop (%(default)s)")
    parser.add_argument("--sanitize", action="store_true", help="here alone, under AddressSanitizer and UBSan")
    parser.add_argument(
        "--first", type=int, default=0, help="with --sanitize: the number of the first case (%(default)s)"
    )
    options = parser.parse_args(argv)
    if missing() and not options.sanitize:
        print(f"loops for aarch64: not run: {missing()}")
        return 1
    said, wrong = sanitized(options.cases, options.first) if options.sanitize else compared(options.cases)
    print("\n".join([*said, *wrong[:20]]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
