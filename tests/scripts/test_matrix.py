"""``make matrix``: a row passes only where tests ran, and says else why they did not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import environments, matrix
from scripts.environments import Environment
from scripts.matrix import Row, counts, interpreter, main, packages, planned, prepared, series, table, tried, with_cuda

ROOT = Path(__file__).parents[2]
JUNIT = '<testsuites><testsuite tests="{}" failures="{}" errors="{}" skipped="{}"></testsuite></testsuites>'


def done(code: int = 0, out: str = "", err: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess([], code, out, err)


class Fake(Environment):
    """An environment where commands have the answers that ``answers`` holds, by a word in them."""

    answers: dict[str, subprocess.CompletedProcess[str]]

    def run(self, *command: str, **options: object) -> subprocess.CompletedProcess[str]:  # type: ignore[override]
        text = " ".join(command)
        return next((answer for word, answer in self.answers.items() if word in text), done())


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    environment = Fake(tmp_path / "environment")
    environment.folder.mkdir()
    object.__setattr__(environment, "answers", {})
    return environment


def report(*found: tuple[str, str]) -> str:
    return json.dumps({"install": [{"metadata": {"name": name, "version": version}} for name, version in found]})


def test_an_interpreter_that_is_missing_is_a_row_that_was_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(matrix, "tests_alone", lambda folder: folder)
    target = tmp_path / "out" / "matrix.json"
    arguments = ["--wheel", "a.whl", "--pythons", "python2.6", "--torches", "2.10", "2.14", "--json", str(target)]
    assert main(arguments) == 1  # nothing passed
    assert capsys.readouterr().out.splitlines()[-1] == "no row passed"
    rows = json.loads(target.read_text())["rows"]
    assert [(row["python"], row["torch"], row["state"], row["why"]) for row in rows] == [
        ("2.6", torch, "not run", "no python2.6 on this machine") for torch in ("2.10", "2.14")
    ]


def test_interpreters_are_found_by_name_and_path() -> None:
    assert interpreter("python2.6") is None
    assert interpreter(sys.executable) == (sys.executable, sys.version.split()[0])


def test_an_interpreter_of_pyenv_is_found_behind_a_name_that_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shim, real = tmp_path / "shims" / "python9.9", tmp_path / "versions" / "9.9.1" / "bin" / "python9.9"
    for path, text in ((shim, "exit 127"), (real, "echo 9.9.1")):
        path.parent.mkdir(parents=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", str(shim.parent))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert interpreter("python9.9") == (str(real), "9.9.1")
    assert interpreter("python9.8") is None


def test_releases() -> None:
    assert [series(each) for each in ("2.14.1+cu130", "2.10.0", "2.9")] == ["2.14", "2.10", "2.9"]


def test_builds_with_cuda_are_not_installed_unasked(fake: Fake) -> None:
    fake.answers["--dry-run"] = done(out=report(("torch", "2.10.0"), ("nvidia-cublas-cu12", "12.8")))
    assert prepared(fake, "2.10", gigabytes=False) == (
        "pip brings torch 2.10.0 with CUDA alone: gigabytes (GIGABYTES=1 allows them)"
    )
    assert prepared(fake, "2.10", gigabytes=True) == ""
    fake.answers["install -q --disable-pip-version-check torch=="] = done(1, err="no space left")
    assert prepared(fake, "2.10", gigabytes=True) == "pip cannot install torch 2.10.0: no space left"
    assert not with_cuda(packages(report(("torch", "2.13.0+cpu"), ("numpy", "2.4"))))


def test_a_torch_that_pip_has_not_is_said(fake: Fake) -> None:
    fake.answers["--dry-run"] = done(1, err="ERROR: Ignored\nERROR: No matching distribution found for torch==2.10.*")
    assert planned(fake, "2.10") == (
        "pip has no torch 2.10 for this Python: No matching distribution found for torch==2.10.*"
    )


ROW = Row("3.11", "2.14", "not run")


def test_a_row_is_what_its_tests_were(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    own = fake.folder / "lib" / "fxquant" / "__init__.py"
    fake.answers["import torch, fxquant"] = done(out=f"2.14.1 {own} avx2\n")

    def tests(code: int, *numbers: int) -> Row:
        def run(*arguments: object) -> subprocess.CompletedProcess[str]:
            (fake.folder / "report.xml").write_text(JUNIT.format(*numbers))
            return done(code)

        monkeypatch.setattr(matrix, "run_tests", run)
        return tried(ROW, fake, Path("a.whl"), Path("clone"))

    passed = tests(0, 10, 0, 0, 2)
    assert (passed.torch, passed.state, passed.passed, passed.skipped) == ("2.14.1", "passed", 8, 2)
    assert passed.why == "instruction set avx2"
    assert tests(1, 10, 1, 1, 0).state == "failed"
    assert tests(0, 2, 0, 0, 2).state == "failed"  # all were skipped
    assert tests(3, 10, 0, 0, 0).state == "failed"  # pytest itself failed


def test_a_row_whose_wheel_is_not_what_is_imported_fails(fake: Fake) -> None:
    fake.answers["import torch, fxquant"] = done(out="2.14.1 /elsewhere/fxquant/__init__.py avx2\n")
    assert tried(ROW, fake, Path("a.whl"), Path("clone")).state == "failed"
    own = fake.folder / "lib" / "fxquant" / "__init__.py"
    fake.answers["import torch, fxquant"] = done(out=f"2.14.1 {own} the native library does not load\n")
    row = tried(ROW, fake, Path("a.whl"), Path("clone"))
    assert (row.state, row.why.endswith("the native library does not load")) == ("failed", True)
    fake.answers["--no-deps"] = done(1, err="not a supported wheel")
    assert tried(ROW, fake, Path("a.whl"), Path("clone")).why == (
        "the wheel cannot be installed: not a supported wheel"
    )


def test_counts_of_a_report(tmp_path: Path) -> None:
    path = tmp_path / "report.xml"
    path.write_text(JUNIT.format(10, 1, 2, 3))
    assert counts(path) == {"passed": 4, "failed": 3, "skipped": 3}


def test_the_table_leaves_cells_of_rows_that_were_not_run_empty() -> None:
    text = table([ROW, Row("3.11", "2.14.1", "passed", "", 8, 0, 2, 3.5)])
    assert [line.split() for line in text.splitlines()[2:]] == [
        ["3.11", "2.14", "not", "run"],
        ["3.11", "2.14.1", "passed", "8", "0", "2", "3.5"],
    ]


def test_the_smoke_set_exists() -> None:
    assert [name for name in matrix.SMOKE if not (ROOT / name).exists()] == []


def test_an_environment_inherits_nothing_that_changes_what_is_tested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYTHONPATH", "FXQUANT_KERNELS", "VIRTUAL_ENV"):
        monkeypatch.setenv(name, "x")
    question = "import os; print(sorted(os.environ)); print(os.environ['CXX'], os.environ['OMP_NUM_THREADS'])"
    asked = Environment(tmp_path / "environment").run(sys.executable, "-c", question, CXX="none")
    names, values = asked.stdout.splitlines()
    assert not [name for name in ("PYTHONPATH", "FXQUANT_KERNELS", "VIRTUAL_ENV") if f"'{name}'" in names]
    assert values == "none 1"


def test_the_copy_of_the_tests_has_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied = environments.tests_alone(tmp_path / "clone")
    assert (copied / "tests" / "conftest.py").exists()
    assert not (copied / "fxquant").exists()
