from __future__ import annotations

import argparse
import subprocess
import sys

import pytest

from fxquant.cli import main as module
from fxquant.cli.command import Command
from fxquant.cli.main import main
from fxquant.errors import SampleError


def fake_command(run: object) -> Command:
    return Command("fake", "help", "description", lambda parser: None, run)  # type: ignore[arg-type]


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(["--help"])
    assert done.value.code == 0
    text = capsys.readouterr().out
    for command in module.COMMANDS:
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

    monkeypatch.setattr(module, "COMMANDS", (fake_command(run),))
    assert main(["fake"]) == 1
    assert capsys.readouterr().err == "SampleError: no such thing\n  got:      nothing\n  hint:     look elsewhere\n"


def test_an_interrupt_ends_with_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def run(options: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "COMMANDS", (fake_command(run),))
    assert main(["fake"]) == 130
    assert capsys.readouterr().err == "interrupted\n"
