from __future__ import annotations

from pathlib import Path

import pytest

from fxquant.cli.main import main

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
    assert f"{target}: 0." in capsys.readouterr().out
    assert f'["state","{kind}"' in target.read_text(encoding="utf-8")


def test_what_names_no_model_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "resnet18", "--output", str(tmp_path / "no.html")]) == 1
    assert "this names no model" in capsys.readouterr().err
