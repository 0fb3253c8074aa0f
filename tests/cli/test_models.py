from __future__ import annotations

import importlib.machinery
import sys
import types
from pathlib import Path

import pytest
import torch
from torch import nn

from fxquant.cli.models import load_model, parse_input
from fxquant.errors import InputError, SampleError

MODEL = """
from torch import nn

def small():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.LayerNorm(144))

def no_model():
    return 3

def sized(size):
    return nn.Linear(size, size)

def failing():
    return nn.Linear(1, 1 // 0)
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


def test_the_name_of_a_model_stands_for_it(file: Path) -> None:
    with file.open("a") as more:
        more.write("\nnet = small()\nalias = nn.ReLU\n")
    model = load_model(f"{file}:net")
    assert isinstance(model, nn.Sequential)
    assert not model.training
    assert torch.equal(model(torch.zeros(1, 3, 8, 8)), sys.modules["_inspected_mine"].net(torch.zeros(1, 3, 8, 8)))
    assert isinstance(load_model(f"{file}:alias"), nn.ReLU)


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


@pytest.mark.parametrize("text", ["", "1,3", "1x", "2x3:float33", "2x3:nn", "0x3x224x224", "1x0"])
def test_what_is_no_input_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="this is no input"):
        parse_input(text)


@pytest.mark.parametrize("text", ["2x3x99999999999999", "9223372036854775808", "2x3:float8_e4m3fn", "2x3:quint8"])
def test_an_input_that_cannot_be_made_is_named(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_input(text)
    lines = str(caught.value).splitlines()
    assert lines[:2] == ["no input of this size and dtype can be made", f"  got:      {text!r}"]


def test_code_that_ends_the_program_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ends.py"
    path.write_text("import sys\ndef make(): sys.exit(3)\n")
    assert refusal(f"{path}:make") == f"making the model failed\n  at:       {path}:2\n  got:      SystemExit: 3"
    path.write_text("raise SystemExit('no GPU')\n")
    assert refusal(f"{path}:make") == f"the file does not run\n  at:       {path}:1\n  got:      SystemExit: no GPU"


def refusal(spec: str) -> str:
    with pytest.raises(InputError) as caught:
        load_model(spec)
    return str(caught.value)


def test_a_factory_with_arguments(file: Path) -> None:
    assert refusal(f"{file}:sized") == (
        "a function that makes a model is called without arguments\n"
        f"  at:       {file}:sized\n"
        "  got:      sized(size)\n"
        "  expected: a function whose arguments have defaults\n"
        "  hint:     def make(): return sized(…), and name that"
    )
    with file.open("a") as more:
        more.write("\ndef make(): return sized(4)\n")
    assert isinstance(load_model(f"{file}:make"), nn.Linear)


def test_a_factory_that_fails(file: Path) -> None:
    line = 1 + file.read_text().splitlines().index("    return nn.Linear(1, 1 // 0)")
    assert refusal(f"{file}:failing") == (
        "making the model failed\n"
        f"  at:       {file}:{line}\n"
        "  got:      ZeroDivisionError: integer division or modulo by zero"
    )


def test_a_file_that_does_not_run(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("x = 1\ndef make(:\n")
    lines = refusal(f"{path}:make").splitlines()
    assert lines[:2] == ["the file does not run", f"  at:       {path}:2"]
    assert lines[2].startswith("  got:      SyntaxError: ")
    other = tmp_path / "other.py"
    other.write_text("import no_such_package\n")
    assert refusal(f"{other}:make").endswith("  got:      ModuleNotFoundError: No module named 'no_such_package'")


def test_models_of_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = types.ModuleType("timm")
    fake.__spec__ = importlib.machinery.ModuleSpec("timm", None)
    made = []

    def create_model(name: str, **options: object) -> nn.Module:
        made.append((name, options))
        return nn.Identity()

    fake.list_models = lambda: ["resnet18"]  # type: ignore[attr-defined]
    fake.create_model = create_model  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "timm", fake)
    assert isinstance(load_model("timm:resnet18"), nn.Identity)
    assert made == [("resnet18", {"pretrained": False})]
    assert refusal("timm:resnet81") == (
        "timm has no such model\n  got:      'resnet81'\n  hint:     did you mean 'resnet18'?"
    )


def test_timm_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SampleError) as caught:
        load_model("timm:resnet18")
    assert str(caught.value) == (
        "this needs packages that fxquant itself does without\n"
        "  got:      no timm\n"
        "  hint:     pip install 'fxquant[timm]'"
    )
