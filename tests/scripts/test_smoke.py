"""``make smoke``: runs where pip brings the torch, says why where it does not, and fails only where tests do."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from scripts import smoke
from scripts.environments import Environment
from scripts.matrix import SMOKE

ROOT = Path(__file__).parents[2]
JUNIT = '<testsuites><testsuite tests="{}" failures="{}" errors="0" skipped="{}"></testsuite></testsuites>'


def done(code: int = 0, out: str = "", err: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess([], code, out, err)


class Machine:
    """Answers the commands of an environment: of venv, of pip, of an import and of pytest."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.commands = folder, []
        self.pip, self.imports, self.pytest = done(), done(out="2.13.0+cpu /clone/fxquant/__init__.py avx2\n"), done()
        self.numbers: tuple[int, ...] = 10, 0, 2

    def run(self, environment: Environment, *command: str, **options: Any) -> subprocess.CompletedProcess[str]:
        text = " ".join(command)
        self.commands.append(text)
        if " -m venv " in text:
            environment.folder.mkdir(parents=True)
        if " -m pip " in text:
            return self.pip
        if "import torch, fxquant" in text:
            assert options["PYTHONPATH"] == str(ROOT)
            return self.imports
        if " -m pytest " in text:
            if self.numbers:
                (environment.folder / "report.xml").write_text(JUNIT.format(*self.numbers))
            return self.pytest
        return done()

    def count(self, words: str) -> int:
        return sum(words in command for command in self.commands)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine(tmp_path)
    monkeypatch.setattr(smoke, "ENVIRONMENTS", tmp_path)
    monkeypatch.setattr(
        Environment, "run", lambda environment, *command, **more: found.run(environment, *command, **more)
    )
    return found


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.splitlines()[-1]


def test_the_environment_is_installed_once(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    assert smoke.main(["--torch", "2.13.0+cpu"]) == 0
    assert last_line(capsys).startswith("== smoke set on torch 2.13.0+cpu, avx2: 8 passed, 2 skipped, ")
    assert smoke.main(["--torch", "2.13.0+cpu"]) == 0
    assert (machine.count(" -m venv "), machine.count("torch==2.13.0+cpu"), machine.count(" -m pytest ")) == (1, 1, 2)
    assert smoke.main(["--torch", "2.12.0+cpu"]) == 0
    assert machine.count(" -m venv ") == 2


def test_a_torch_that_pip_has_not_is_said_and_is_no_failure(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.pip = done(1, err="ERROR: No matching distribution found for torch==2.13.0+cpu")
    assert smoke.main(["--torch", "2.13.0+cpu"]) == 0
    assert last_line(capsys) == "== smoke set on torch 2.13.0+cpu: not run, pip has no torch 2.13.0+cpu for this Python"
    assert machine.count(" -m pytest ") == 0
    machine.pip = done(1, err="ERROR: no space left on device")
    assert smoke.main(["--torch", "2.13.0+cpu"]) == 0
    assert last_line(capsys).endswith("not run, pip fails: ERROR: no space left on device")
    machine.pip = done()  # nothing of it is taken for an environment
    assert smoke.main(["--torch", "2.13.0+cpu"]) == 0
    assert machine.count(" -m pytest ") == 1


def test_what_fails_is_printed_above_the_last_line(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.pytest, machine.numbers = done(1, out="E  assert 1 == 2\n1 failed, 7 passed in 3.00s"), (10, 1, 2)
    assert smoke.main(["--torch", "2.13.0+cpu"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "E  assert 1 == 2" in lines
    assert lines[-1].startswith("== smoke set on torch 2.13.0+cpu, avx2: 7 passed, 1 failed, 2 skipped, ")


@pytest.mark.parametrize("numbers", [(), (2, 0, 2)], ids=["no report", "all skipped"])
def test_a_run_without_a_test_that_passed_fails(machine: Machine, numbers: tuple[int, ...]) -> None:
    assert smoke.main(["--torch", "2.13.0+cpu"]) == 0
    machine.numbers = numbers  # the report of the run before does not count
    assert smoke.main(["--torch", "2.13.0+cpu"]) == 1


def test_a_package_that_is_not_imported_fails(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.imports = done(1, err="ImportError: undefined symbol")
    assert smoke.main(["--torch", "2.13.0+cpu"]) == 1
    assert last_line(capsys).endswith("fails, fxquant cannot be imported: ImportError: undefined symbol")
    machine.imports = done(out="2.13.0+cpu /clone/fxquant/__init__.py the library does not load\n")
    assert smoke.main(["--torch", "2.13.0+cpu"]) == 1
    assert last_line(capsys).endswith("fails, no native kernels: the library does not load")


def test_its_tests_exist_and_are_of_the_matrix() -> None:
    assert [name for name in smoke.TESTS if not (ROOT / name).exists()] == []
    assert [name for name in smoke.TESTS if not name.startswith(SMOKE)] == []
