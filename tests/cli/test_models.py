from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from fxquant.cli.models import load_model, parse_input
from fxquant.errors import InputError

MODEL = """
from torch import nn

def small():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.LayerNorm(144))

def no_model():
    return 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(MODEL)
    return path


def test_models_come_from_torchvision_modules_and_files(file: Path) -> None:
    assert type(load_model("torchvision:squeezenet1_1")).__name__ == "SqueezeNet"
    assert type(load_model("torchvision:lraspp_mobilenet_v3_large")).__name__ == "LRASPP"  # fetches no backbone
    assert isinstance(load_model("torch.nn:Identity"), nn.Identity)
    assert not load_model(f"{file}:small").training


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("resnet18", ["this names no model", "'resnet18'", "torchvision:NAME"]),
        ("torchvision:resnet81", ["torchvision has no such model", "did you mean 'resnet18'?"]),
        ("no_such_package:model", ["there is no such module", "is it on PYTHONPATH?"]),
        ("no/such/file.py:model", ["there is no such file", "no/such/file.py"]),
        ("{file}:smal", ["has no function of that name", "did you mean 'small'?"]),
        ("{file}:no_model", ["what this makes is no model", "int", "a torch.nn.Module"]),
    ],
)
def test_what_names_no_model_is_refused(file: Path, spec: str, words: list[str]) -> None:
    with pytest.raises(InputError) as refusal:
        load_model(spec.format(file=file))
    for word in words:
        assert word in str(refusal.value)


def test_inputs() -> None:
    assert parse_input("2x3").shape == (2, 3)
    assert parse_input("2x3").dtype == torch.float32
    assert parse_input("4:int64").equal(torch.zeros(4, dtype=torch.int64))
    assert parse_input("4:float64").dtype == torch.float64


@pytest.mark.parametrize("text", ["", "1,3", "1x", "2x3:float33", "2x3:nn"])
def test_what_is_no_input_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="this is no input"):
        parse_input(text)
