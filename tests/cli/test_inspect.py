from __future__ import annotations

from pathlib import Path

import pytest

from fxquant.__main__ import main
from fxquant.cli.command import RANDOM

MODEL = """
from torch import nn

def small():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.RMSNorm(144))
"""

TWO = """
from torch import nn

class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x, y):
        return self.fc(x) + y
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(MODEL)
    return path


def test_passes_and_coverage_are_printed(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", f"{file}:small", "--input", "1x3x8x8"]) == 0
    text = capsys.readouterr().out
    for name in ("normalize", "annotate", "lower_units", "eliminate_dead_code"):
        assert f"] {name}  +" in text
    assert "+ _1 = QuantizedConv" in text
    assert "RMSNorm" in text
    assert "it normalizes every sample by the sample's own statistics" in " ".join(text.split())
    assert "100.00 % of" in text
    assert text.endswith(f"{RANDOM}\n")


def test_the_plan_alone(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", f"{file}:small", "--input", "1x3x8x8", "--to", "plan"]) == 0
    text = capsys.readouterr().out
    assert "] annotate  +" in text
    assert "lower_units" not in text
    assert main(["inspect", f"{file}:small", "--input", "1x3x8x8", "--no-passes"]) == 0
    assert "] annotate  +" not in capsys.readouterr().out


def test_all_lines_are_printed_if_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "deep.py"
    path.write_text(
        "from torch import nn\n\ndef deep():\n    return nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.ReLU())"
        " for _ in range(4)))\n"
    )
    assert main(["inspect", f"{path}:deep", "--input", "2x4"]) == 0
    assert "× 3 more like _0" in capsys.readouterr().out
    assert main(["inspect", f"{path}:deep", "--input", "2x4", "--all"]) == 0
    assert "more like" not in capsys.readouterr().out


def test_strict_fails_with_the_reason(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", f"{file}:small", "--input", "1x3x8x8", "--strict"]) == 1
    assert "PlanError: strict: 1 operators would stay float" in capsys.readouterr().err


def test_a_model_of_two_inputs_says_how_to_give_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "two.py"
    path.write_text(TWO)
    assert main(["inspect", f"{path}:Two", "--input", "2x8"]) == 1
    text = capsys.readouterr().err
    assert "missing a required argument: 'y'\n  got:      (float32[2, 8])\n  expected: Two.forward(x, y)\n" in text
    assert "--input of a command, once for each" in text
    assert main(["inspect", f"{path}:Two", "--input", "2x8", "--input", "2x8"]) == 0
