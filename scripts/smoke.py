"""Runs a small part of the tests on the oldest torch that pip brings without CUDA, in this clone. ``make smoke``.

The library of the clone serves every torch, so nothing is built. The environment lies in ``build/smoke``, and is
installed once. Where pip has no such torch, nothing is run and nothing fails: the last line says why.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from scripts.environments import Environment  # noqa: E402
from scripts.matrix import NEEDED, NO_SUCH_TORCH, counts, imported  # noqa: E402

TESTS = (
    "tests/quantizer/test_convert.py",
    "tests/capture/test_tracing.py",
    "tests/capture/test_modes.py",
    "tests/capture/exported/test_state.py",
    "tests/observers/test_minmax.py",
    "tests/fake_quantize/test_tracing.py",
    "tests/kernels/linear",
    "tests/artifact/test_format.py",
    "tests/exporting/test_decomposed.py",
    "tests/runtime/test_program.py",
    "tests/runtime/test_compiling.py",
)
"""Two minutes of two quiet cores at most: of what ``make matrix`` runs, that which depends most on torch."""
LIMIT = 1200.0
"""Seconds for the tests on a busy machine."""
ENVIRONMENTS = ROOT / "build" / "smoke"
WITH = (*NEEDED, "pytest-xdist>=3.6")


def installed(environment: Environment, torch: str) -> str:
    """Bring an exact release of torch, and what the tests need, into an environment that has them not.

    Returns:
        Why there is none; empty if there is.
    """
    wanted = "\n".join((sys.version, torch, *WITH))
    stamp = environment.folder / "smoke.txt"
    if stamp.exists() and stamp.read_text() == wanted:
        return ""
    environment.create()
    done = environment.pip(f"torch=={torch}", *WITH)
    if done.returncode != 0:
        shutil.rmtree(environment.folder, ignore_errors=True)
        lack = NO_SUCH_TORCH in done.stderr
        return f"pip has no torch {torch} for this Python" if lack else f"pip fails: {done.stderr.strip()[-300:]}"
    stamp.write_text(wanted)
    return ""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--torch", required=True, help="an exact release, as 2.13.0+cpu")
    options = parser.parse_args(argv)
    # Without +cpu, pip would fetch gigabytes before it says that it has nothing else.
    environment = Environment(ENVIRONMENTS / f"torch-{options.torch}")
    begin = time.monotonic()
    why = installed(environment, options.torch)
    print(f"== smoke set on torch {options.torch}: its environment took {time.monotonic() - begin:.0f} s", flush=True)
    if why:
        print(f"== smoke set on torch {options.torch}: not run, {why}")
        return 0
    found = imported(environment, PYTHONPATH=str(ROOT))
    if isinstance(found, str):
        print(f"== smoke set on torch {options.torch}: fails, {found}")
        return 1
    report = environment.folder / "report.xml"
    report.unlink(missing_ok=True)
    command = ("-m", "pytest", "-p", "no:cacheprovider", "--tb=short", "-n", "2", "--dist", "worksteal")
    begin = time.monotonic()
    try:
        done = environment.run(
            *(str(environment.python), *command, f"--junitxml={report}", *TESTS),
            limit=LIMIT,
            folder=ROOT,
            PYTHONPATH=str(ROOT),
            CXX="none",
        )
    except subprocess.TimeoutExpired:
        print(f"== smoke set on torch {options.torch}: fails, the tests took more than {LIMIT:.0f} s")
        return 1
    seconds = time.monotonic() - begin
    said = counts(report) if report.exists() else {"passed": 0, "failed": 0, "skipped": 0}
    right = done.returncode == 0 and said["passed"] > 0 and said["failed"] == 0
    if not right:
        print(done.stdout + done.stderr)
    numbers = ", ".join(f"{count} {name}" for name, count in said.items() if count)
    print(f"== smoke set on torch {found.torch}, {found.isa}: {numbers or 'no test ran'}, {seconds:.0f} s")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
