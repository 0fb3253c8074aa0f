"""The command that builds the native libraries: what the doctor says without a compiler is done, and works."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sysconfig
import venv
from importlib import metadata
from pathlib import Path

import pytest

from fxquant.kernels import building
from fxquant.kernels.building import PIP, build_command
from fxquant.kernels.library import available_isas

ROOT = Path(__file__).parents[2]
COMPILERS = ("c++", "g++", "clang++")
OBJECTS = ROOT / "build" / "native"
DOCTOR = ("-m", "fxquant", "doctor")


def test_of_a_clone(tmp_path: Path) -> None:
    package = tmp_path / "my clone" / "fxquant"
    package.mkdir(parents=True)
    for name in ("setup.py", "pyproject.toml"):
        (package.parent / name).write_text("")
    assert build_command(package) == f"{PIP} -e '{package.parent}'"


def test_of_an_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Installed:
        text: str | None = json.dumps({"url": tmp_path.as_uri(), "dir_info": {}})

        def read_text(self, name: str) -> str | None:
            return self.text if name == "direct_url.json" else None

    monkeypatch.setattr(building, "distribution", lambda name: Installed())
    anywhere = f"{PIP} --no-deps --force-reinstall .   # in a clone of fxquant"
    assert build_command(tmp_path / "site-packages" / "fxquant") == anywhere  # the folder is gone
    (tmp_path / "setup.py").write_text("")
    command = f"{PIP} --no-deps --force-reinstall {tmp_path}"
    assert build_command(tmp_path / "site-packages" / "fxquant") == command
    Installed.text = None
    assert build_command(tmp_path / "site-packages" / "fxquant") == anywhere

    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(building, "distribution", missing)
    assert build_command(tmp_path / "site-packages" / "fxquant") == anywhere


class Machine:
    """A clone, and an environment that has all packages of this one but fxquant; with compilers, or without."""

    def __init__(self, folder: Path) -> None:
        self.clone, environment = folder / "a clone", folder / "environment"
        ignored = shutil.ignore_patterns("*.so", "__pycache__")
        shutil.copytree(ROOT / "fxquant", self.clone / "fxquant", ignore=ignored)
        for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, self.clone / name)
        # what was compiled before is not compiled again: it would take minutes
        shutil.copytree(OBJECTS, self.clone / "build" / "native", copy_function=os.link)
        venv.create(environment, with_pip=False)
        self.python = environment / "bin" / "python"
        (site,) = environment.glob("lib/python*/site-packages")
        (site / "packages.pth").write_text(sysconfig.get_path("purelib") + "\n")
        self.bare, self.full = folder / "bare", folder / "full"
        for tools, names in ((self.bare, ()), (self.full, [name for name in COMPILERS if shutil.which(name)])):
            tools.mkdir()
            for name in (*names, *(("ld", "as") if names else ())):
                (tools / name).symlink_to(shutil.which(name) or "/")

    def run(self, *command: str, compiler: bool) -> subprocess.CompletedProcess[str]:
        path = [str(self.python.parent), str(self.full if compiler else self.bare)]
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "FXQUANT_", "CXX"))}
        given = {
            **kept,
            "PATH": os.pathsep.join(path),
            "PIP_NO_INDEX": "1",
            "FXQUANT_CUDA": "0",
            "OMP_NUM_THREADS": "1",
        }
        folder = self.clone.parent  # not the clone: what is imported is what was installed
        return subprocess.run(command, env=given, cwd=folder, capture_output=True, text=True, check=False)

    def install(self, *options: str, compiler: bool) -> None:
        command = (str(self.python), "-m", "pip", "install", "-q", "--no-build-isolation", "--no-deps", *options)
        done = self.run(*command, str(self.clone), compiler=compiler)
        assert done.returncode == 0, done.stdout + done.stderr

    def native(self, *, compiler: bool) -> tuple[str, str]:
        """What the doctor finds of the kernels, and what he advises."""
        done = self.run(str(self.python), *DOCTOR, compiler=compiler)
        assert done.returncode == 0, done.stdout + done.stderr
        found = re.search(r"(\w+) +native CPU kernels +(.*)(?:\n +-> (.*))?", done.stdout)
        assert found, done.stdout
        return f"{found[1]}: {found[2]}", found[3] or ""

    def follow(self, advice: str) -> None:
        """Do what it says, word by word."""
        first, _, command = advice.partition(", then ")
        assert first == "install a C++ compiler (as c++, g++ or clang++)"
        done = self.run("/bin/sh", "-c", command, compiler=True)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(not any(map(shutil.which, COMPILERS)), reason="no C++ compiler")
@pytest.mark.skipif(not OBJECTS.is_dir() or not available_isas(), reason="the native library is not built here")
@pytest.mark.slow
@pytest.mark.parametrize("options", [("-e",), ()], ids=["editable", "copied"])
def test_the_advice_of_the_doctor_works(tmp_path: Path, options: tuple[str, ...]) -> None:
    machine = Machine(tmp_path)
    if not options:  # an earlier build leaves build/lib*, which must not go into what is built without a compiler
        machine.install(compiler=True)
        assert list(machine.clone.glob("build/lib*/fxquant/kernels/_native.so"))
    machine.install(*options, compiler=False)
    finding, advice = machine.native(compiler=False)
    assert finding == "slow: the native library was not built"
    machine.follow(advice)
    finding, advice = machine.native(compiler=True)
    assert finding.startswith("ok: using ")
    assert advice == ""
