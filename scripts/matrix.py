"""Runs a smoke set of the tests with each Python and each torch that can be had, on one wheel. ``make matrix``.

A row is an interpreter and a release of torch. It passes only if its tests ran and passed: where the interpreter is
not on this machine, or pip has no such torch for it, the row says "not run" and why. Builds of torch with CUDA are
gigabytes and are left out, unless the environment that runs this script has one, or ``--gigabytes`` allows it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path

from tabulate import tabulate

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from scripts.environments import Environment, run_tests, tests_alone  # noqa: E402

PYTHONS = ("python3.10", "python3.11", "python3.12", "python3.13", "python3.14")
TORCHES = ("2.10", "2.13", "2.14")
SMOKE = (
    "tests/quantizer/test_quantizer.py",
    "tests/quantizer/test_convert.py",
    "tests/capture/test_tracing.py",
    "tests/capture/test_modes.py",
    "tests/capture/exported/test_state.py",
    "tests/observers",
    "tests/fake_quantize",
    "tests/kernels/test_library.py",
    "tests/kernels/elementwise",
    "tests/kernels/linear",
    "tests/kernels/table",
    "tests/artifact/test_format.py",
    "tests/artifact/test_packing.py",
    "tests/exporting/test_explicit.py",
    "tests/exporting/test_decomposed.py",
    "tests/runtime/test_program.py",
    "tests/runtime/test_compiling.py",
    "tests/training/test_unit_table.py",
    "tests/training/test_schedule.py",
)
"""Two minutes of one quiet core: what depends most on torch and Python, and needs no torchvision."""
NEEDED = ("pytest>=8", "hypothesis>=6", "numpy", "tabulate", "tqdm", "safetensors", "psutil", "setuptools>=77")
NO_SUCH_TORCH = "No matching distribution found"
LIMIT = 1200.0
"""Seconds for the tests of one row on a busy machine."""


@dataclass(frozen=True, slots=True)
class Row:
    """What became of one Python with one torch."""

    python: str
    torch: str
    state: str
    """``passed``, ``failed`` or ``not run``."""
    why: str = ""
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Imported:
    """What an environment imports."""

    torch: str
    file: Path
    """``fxquant/__init__.py``."""
    isa: str
    """Instruction set of the native kernels."""


def interpreter(name: str) -> tuple[str, str] | None:
    """Return path and version of an interpreter by name or path; None where none runs.

    Those that pyenv has installed are found, too: its name on ``PATH`` runs only the versions that are switched on.
    """
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    found = [shutil.which(name), *map(str, sorted(root.glob(f"versions/*/bin/{Path(name).name}")))]
    question = "import platform; print(platform.python_version())"
    for path in filter(None, found):
        done = subprocess.run([path, "-c", question], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return path, done.stdout.strip()
    return None


def series(release: str) -> str:
    """``2.14`` of ``2.14.1+cu130``."""
    return ".".join(release.split("+")[0].split(".")[:2])


def planned(environment: Environment, torch: str) -> dict[str, str] | str:
    """Return the packages and versions that pip would install for a torch, or why it cannot."""
    done = environment.pip("--dry-run", "--ignore-installed", "--report", "-", f"torch=={torch}.*")
    if done.returncode != 0:
        said = re.findall(r"^ERROR: (.*)$", done.stderr, re.MULTILINE)
        return f"pip has no torch {torch} for this Python: {said[-1] if said else done.stderr.strip()[-200:]}"
    return packages(done.stdout)


def packages(report: str) -> dict[str, str]:
    """Names and versions in a report of pip."""
    found = [each["metadata"] for each in json.loads(report)["install"]]
    return {each["name"]: each["version"] for each in found}


def with_cuda(found: dict[str, str]) -> bool:
    return any(name.startswith(("nvidia-", "cuda-")) for name in found)


def prepared(environment: Environment, torch: str, gigabytes: bool) -> str:
    """Bring a torch into an environment.

    Returns:
        Why there is none; empty if there is.
    """
    same = (version("torch"), f"{sys.version_info.major}.{sys.version_info.minor}")
    ours = environment.run(str(environment.python), "-c", "import sys; print('%d.%d' % sys.version_info[:2])")
    if (series(same[0]), same[1]) == (torch, ours.stdout.strip()):
        environment.borrow()
        return ""
    found = planned(environment, torch)
    if isinstance(found, str):
        return found
    if with_cuda(found) and not gigabytes:
        return f"pip brings torch {found['torch']} with CUDA alone: gigabytes (GIGABYTES=1 allows them)"
    done = environment.pip(f"torch=={found['torch']}", *NEEDED)
    return "" if done.returncode == 0 else f"pip cannot install torch {found['torch']}: {done.stderr.strip()[-300:]}"


def counts(report: Path) -> dict[str, int]:
    """Tests by outcome in a JUnit file."""
    found = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    for suite in ElementTree.parse(report).getroot().iter("testsuite"):
        for name in found:
            found[name] += int(suite.get(name, 0))
    failed = found["failures"] + found["errors"]
    return {"passed": found["tests"] - failed - found["skipped"], "failed": failed, "skipped": found["skipped"]}


def imported(environment: Environment, **variables: str) -> Imported | str:
    """Import the package in an environment, and return what it finds; or why that fails, native kernels included."""
    question = (
        "import torch, fxquant; from fxquant.kernels.library import native_status as s;"
        "print(torch.__version__, fxquant.__file__, s().cpu_isa or s().reason)"
    )
    asked = environment.run(str(environment.python), "-c", question, **variables)
    if asked.returncode != 0:
        return f"fxquant cannot be imported: {asked.stderr.strip()[-300:]}"
    torch, file, isa = asked.stdout.strip().split(" ", 2)
    return f"no native kernels: {isa}" if " " in isa else Imported(torch, Path(file), isa)


def tried(row: Row, environment: Environment, wheel: Path, clone: Path) -> Row:
    """Install the wheel, run the tests, and return the row with what came of it."""
    done = environment.pip("--no-deps", str(wheel))
    if done.returncode != 0:
        return replace(row, state="failed", why=f"the wheel cannot be installed: {done.stderr.strip()[-300:]}")
    found = imported(environment)
    if isinstance(found, str):
        return replace(row, state="failed", why=found)
    row = replace(row, torch=found.torch)
    if not found.file.is_relative_to(environment.folder):
        return replace(row, state="failed", why=f"not the wheel: {found.file}")
    report = environment.folder / "report.xml"
    start = time.monotonic()
    try:
        done = run_tests(environment, clone, SMOKE, LIMIT, f"--junitxml={report}")
    except subprocess.TimeoutExpired:
        return replace(row, state="failed", why=f"the tests took more than {LIMIT:.0f} s")
    said = environment.folder / "pytest.txt"
    said.write_text(done.stdout + done.stderr)
    if not report.exists():
        return replace(row, state="failed", why=f"pytest ended with {done.returncode}: see {said}")
    numbers = counts(report)
    right = done.returncode == 0 and numbers["passed"] > 0 and numbers["failed"] == 0
    why = f"instruction set {found.isa}" if right else f"see {said}"
    seconds = round(time.monotonic() - start, 1)
    return replace(row, state="passed" if right else "failed", why=why, seconds=seconds, **numbers)


def rows(options: argparse.Namespace) -> Iterator[Row]:
    folder = ROOT / "build" / "matrix"
    clone = tests_alone(folder / "clone")
    for name in options.pythons:
        found = interpreter(name)
        for torch in options.torches:
            row = Row(name.removeprefix("python") if found is None else found[1], torch, "not run")
            if found is None:
                yield replace(row, why=f"no {name} on this machine")
                continue
            environment = Environment(folder / f"python{found[1]}-torch{torch}").create(found[0])
            why = prepared(environment, torch, options.gigabytes)
            yield replace(row, why=why) if why else tried(row, environment, options.wheel.resolve(), clone)


def table(found: Sequence[Row]) -> str:
    heads = ("python", "torch", "state", "passed", "failed", "skipped", "seconds", "")
    ran = [(r.passed, r.failed, r.skipped, r.seconds) if r.state != "not run" else ("", "", "", "") for r in found]
    lines = [(r.python, r.torch, r.state, *cells, r.why) for r, cells in zip(found, ran, strict=True)]
    return tabulate(lines, heads, disable_numparse=True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--wheel", type=Path, required=True, help="what is tested")
    parser.add_argument("--pythons", nargs="*", default=PYTHONS, help="names or paths of interpreters (%(default)s)")
    parser.add_argument("--torches", nargs="*", default=TORCHES, help="releases of torch (%(default)s)")
    parser.add_argument("--gigabytes", action="store_true", help="install builds of torch with CUDA, too")
    parser.add_argument("--json", type=Path, default=ROOT / "out" / "matrix.json", help="(out/matrix.json)")
    options = parser.parse_args(argv)
    found = list(rows(options))
    print(table(found))
    about = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": " ".join((platform.system(), platform.machine(), *platform.libc_ver())),
        "wheel": options.wheel.name,
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps({**about, "rows": [asdict(row) for row in found]}, indent=1) + "\n")
    failed = [row for row in found if row.state == "failed"]
    if not any(row.state == "passed" for row in found):
        print("no row passed")
        return 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
