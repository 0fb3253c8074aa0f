from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest

import fxquant
from fxquant import __main__ as module
from fxquant.__main__ import main
from fxquant.commandline import COMMANDS, FORMS
from fxquant.errors import SampleError
from fxquant.passes.pipelines import CONVERT


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(["--help"])
    assert done.value.code == 0
    text = capsys.readouterr().out
    for command in COMMANDS:
        assert command.name in text
        assert command.help.split()[0] in text


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "fxquant", "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stdout.startswith("usage: python -m fxquant")


def test_no_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main([])
    assert done.value.code == 2
    assert "COMMAND" in capsys.readouterr().err


def test_an_error_of_fxquant_is_printed_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(options: argparse.Namespace) -> int:
        raise SampleError("no such thing", got="nothing", hint="look elsewhere")

    monkeypatch.setattr(module, "runner", lambda command: run)
    assert main(["doctor"]) == 1
    assert capsys.readouterr().err == "SampleError: no such thing\n  got:      nothing\n  hint:     look elsewhere\n"


def test_an_interrupt_ends_with_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def run(options: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "runner", lambda command: run)
    assert main(["doctor"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("inspect", "--help"), ("inspct",)])
def test_what_needs_no_torch_imports_none(arguments: tuple[str, ...]) -> None:
    done = python("-X", "importtime", "-m", "fxquant", *arguments)
    assert done.returncode == (2 if arguments == ("inspct",) else 0)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "fxquant.commandline" in imported
    assert "torch" not in imported


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(["--version"])
    assert (done.value.code, capsys.readouterr().out) == (0, f"fxquant {fxquant.__version__}\n")
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    assert f'\nversion = "{fxquant.__version__}"\n' in project


@pytest.mark.parametrize(
    ("arguments", "near"),
    [(["inspct"], "inspect"), (["docter"], "doctor"), (["inspect", "m:f", "--to", "in8"], "int8")],
)
def test_misspelt_words(arguments: list[str], near: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(arguments)
    assert done.value.code == 2
    assert capsys.readouterr().err.endswith(f"did you mean {near!r}?\n")


@pytest.mark.slow
def test_values_of_the_environment_that_cannot_be() -> None:
    done = python("-m", "fxquant", "doctor", FXQUANT_DEBUG="9")
    assert done.returncode == 1
    assert done.stderr == (
        "SpecError: the environment variable FXQUANT_DEBUG has an unknown value\n"
        "  got:      '9'\n"
        "  expected: 0, 1, 2, 3\n"
    )


def test_a_folder_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(module, "runner", lambda command: lambda options: Path("/dev/null/page.html").write_text(""))
    assert main(["doctor"]) == 1
    assert capsys.readouterr().err == (
        "InputError: a file or a folder cannot be used\n  at:       /dev/null/page.html\n  got:      Not a directory\n"
    )


def test_the_forms_are_those_of_convert() -> None:
    assert tuple(CONVERT) == FORMS
