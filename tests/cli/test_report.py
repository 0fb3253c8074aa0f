from __future__ import annotations

from pathlib import Path

import pytest

from fxquant.__main__ import main
from fxquant.cli.command import RANDOM

MODEL = """
from torch import nn

def small():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
"""


@pytest.mark.parametrize(("options", "kind"), [((), "calibrated"), (("--plan",), "planned")])
def test_a_page_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], kind: str
) -> None:
    source, target = tmp_path / "mine.py", tmp_path / "page.html"
    source.write_text(MODEL)
    assert main(["report", f"{source}:small", "--input", "2x3x8x8", "--output", str(target), *options]) == 0
    shown = capsys.readouterr().out
    assert f"{target}: 0." in shown
    assert shown.startswith(f"{RANDOM}\n")
    assert f'["state","{kind}"' in target.read_text(encoding="utf-8")


def test_what_names_no_model_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "resnet18", "--output", str(tmp_path / "no.html")]) == 1
    assert "this names no model" in capsys.readouterr().err


def test_a_page_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "mine.py"
    source.write_text(MODEL)
    command = ["report", f"{source}:small", "--input", "2x3x8x8", "--plan", "--output"]
    assert main([*command, str(tmp_path)]) == 1
    inside = tmp_path / "report.html"
    assert capsys.readouterr().err == (
        "InputError: the report cannot be written\n"
        f"  at:       {tmp_path}\n"
        "  got:      a folder\n"
        "  expected: a file\n"
        f"  hint:     give {inside}\n"
    )
    assert main([*command, str(inside)]) == 0
    assert main([*command, str(source / "report.html")]) == 1  # below a file
    assert capsys.readouterr().err.splitlines()[:2] == [
        "InputError: the report cannot be written",
        f"  at:       {source}",
    ]
