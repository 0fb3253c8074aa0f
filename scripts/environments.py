"""Virtual environments in which a wheel is tried, apart from the one that runs the script."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOT_INHERITED = ("PYTHON", "FXQUANT_", "VIRTUAL_ENV", "MAKE", "MFLAGS")
"""What begins so stays outside: it would put the clone on the path, or change what is tested."""


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment; ``create`` makes it anew."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def create(self, interpreter: str = sys.executable) -> Environment:
        """Make it for an interpreter, without any package but pip."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.run(interpreter, "-m", "venv", str(self.folder))
        return self

    def borrow(self) -> None:
        """See the packages of the environment that runs this, without what these install themselves (``*.pth``): so the
        clone that is installed there as editable is not seen."""
        (site,) = self.folder.glob("lib/python*/site-packages")
        self.run(
            str(self.python), "-m", "pip", "uninstall", "-q", "-y", "setuptools"
        )  # a new one of Python 3.11 is old
        (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")

    def pip(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = ("-m", "pip", "install", "-q", "--disable-pip-version-check", *arguments)
        return self.run(str(self.python), *command)

    def run(
        self, *command: str, limit: float | None = None, folder: Path | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command outside the clone, so that what is imported is what was installed.

        Args:
            limit: Seconds; then ``subprocess.TimeoutExpired`` is raised.
            folder: Where to.
            variables: More of the environment.
        """
        kept = {name: value for name, value in os.environ.items() if not name.startswith(NOT_INHERITED)}
        given = {**kept, "OMP_NUM_THREADS": "1", **variables}
        where = folder or self.folder.parent
        where.mkdir(parents=True, exist_ok=True)
        return subprocess.run(command, env=given, cwd=where, capture_output=True, text=True, check=False, timeout=limit)


def tests_alone(folder: Path) -> Path:
    """Copy the tests and what they read, without the package, and return the folder.

    Programs that are run there import the package that was installed, though a test names the folder of the tests.
    """
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("tests", "scripts", "examples", "docs", "benchmarks"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "pyproject.toml", "Makefile", "setup.py"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def run_tests(
    environment: Environment, clone: Path, tests: Sequence[str], limit: float, *options: str
) -> subprocess.CompletedProcess[str]:
    """Run pytest in a folder that ``tests_alone`` made. Tests find no compiler: what is tried is what is in the wheel.

    Args:
        tests: Files and folders of tests in it.
        limit: Seconds.
        options: More of pytest.
    """
    command = ("-m", "pytest", "-p", "no:cacheprovider", "--tb=short", *options, *tests)
    return environment.run(str(environment.python), *command, limit=limit, folder=clone, CXX="none")
