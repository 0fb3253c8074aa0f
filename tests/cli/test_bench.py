from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from fxquant.__main__ import main
from fxquant.cli.command import RANDOM

MODEL = """
from torch import nn

def small():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))
"""


@pytest.fixture
def spec(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(MODEL)
    return f"{path}:small"


def test_the_table_is_printed(spec: str, capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    assert main(["bench", spec, "--input", "1x3x8x8", "--rounds", "2", "--threads", "1"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{spec} on ")
    assert " threads: 1, torch " in text
    assert "of 3 units are slower in int8 than in float, beyond noise" in text
    assert "summed up on 1 thread: " in text
    assert text.endswith(f"{RANDOM}\n")
    assert torch.get_num_threads() == threads


def test_as_json(spec: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", spec, "--input", "1x3x8x8", "--rounds", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["model"] == spec
    assert found["machine"]["torch"] == torch.__version__
    assert {row["name"] for row in found["rows"] if row["kind"] == "unit"} == {"0", "2", "3"}


def test_what_makes_no_sense_is_refused(spec: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", spec, "--threads", "0"]) == 1
    assert "this is no number of threads" in capsys.readouterr().err
    assert main(["bench", spec, "--input", "1x3x8x8", "--rounds", "0"]) == 1
    assert "and at least one round" in capsys.readouterr().err
