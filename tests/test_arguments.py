"""Arguments of another type are refused by name, in the layout of all errors, before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fxquant as fxq
from fxquant.errors import FxQuantError
from fxquant.fake_quantize.learnable import LearnableFakeQuantize

BATCHES = [torch.linspace(-1, 1, 8).reshape(2, 4)]


def linear() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()


def calibrated() -> fxq.Quantizer:
    return fxq.calibrate(fxq.prepare(linear(), BATCHES[0]), BATCHES, progress=False)


def prepare(**given: Any) -> Any:
    return fxq.prepare(linear(), BATCHES[0], **given)


def prepare_qat(**given: Any) -> Any:
    return fxq.prepare_qat(linear().train(), BATCHES[0], **given)


def convert(**given: Any) -> Any:
    return fxq.convert(calibrated(), **given)


def of_calibrated(function: Callable[..., Any], **given: Any) -> Any:
    return function(calibrated(), BATCHES, progress=False, **given)


adaround, gptq, sensitivity = (partial(of_calibrated, each) for each in (fxq.adaround, fxq.gptq, fxq.sensitivity))


def report(**given: Any) -> Any:
    return fxq.report(calibrated(), "report.html", **given)


def export_onnx(**given: Any) -> Any:
    return fxq.export_onnx(fxq.convert(calibrated(), to="fake_quant"), "model.onnx", BATCHES[0], **given)


def load(**given: Any) -> Any:
    fxq.save(fxq.convert(calibrated()), "model.fxq")
    return fxq.load("model.fxq", **given)


def inspect_artifact(**given: Any) -> Any:
    fxq.save(fxq.convert(calibrated()), "model.fxq")
    return fxq.inspect_artifact("model.fxq", **given)


def pattern(**given: Any) -> Any:
    return fxq.Pattern(name="mine", **given)


MAKES: list[Callable[..., Any]] = [prepare, prepare_qat]
OBSERVERS: list[Callable[..., Any]] = [
    fxq.MinMaxObserver,
    fxq.MovingAverageMinMaxObserver,
    fxq.HistogramObserver,
    fxq.MSEObserver,
    partial(fxq.FixedQParamsObserver, 1.0, 0),
]
NAN, INFINITE = float("nan"), float("inf")
WRONG: list[tuple[list[Callable[..., Any]], str, tuple[Any, ...]]] = [
    (MAKES, "example_kwargs", (3, "abc", [1], torch.ones(2))),
    (MAKES, "patterns", (3, True, nn.Linear, {fxq.op(torch.relu)})),
    ([convert], "to", (["int8"], {}, torch.ones(2))),
    ([adaround, gptq], "checkpoint", (3, ["folder"], b"folder")),
    ([sensitivity], "seed", (1.5, "0", None)),
    ([report], "results", (3, None)),
    ([report], "about", (3, "abc", ["data"])),
    ([load, inspect_artifact], "limits", (3, "1 GB", {"file": 3})),
    ([load], "modules", (3, [nn.Linear(2, 2)])),
    ([export_onnx], "check", (["onnxruntime"], {"a": 1})),
    (OBSERVERS, "scheme", (3, "int8", {})),
    (OBSERVERS, "dtype", (["int8"], {})),
    (OBSERVERS, "quant_min", (NAN, INFINITE)),
    ([fxq.FixedQParamsObserver], "scale", (None, "0.1", [0.1])),
    ([fxq.FixedQParamsObserver], "zero_point", (None, "3", [3], NAN, INFINITE)),
    ([LearnableFakeQuantize], "quant_max", (None, "255", [255], NAN, INFINITE)),
    ([LearnableFakeQuantize], "scale", (None, "1", [1.0])),
    ([LearnableFakeQuantize], "zero_point", (None, "1", [1.0])),
    ([fxq.get_lsq_qconfig], "weight_bits", (None, "4", [4], 1, 9, 10**9, NAN)),
    ([fxq.get_lsq_qconfig], "activation_bits", (None, "4", 1, 4.5)),
    ([fxq.weight_only_qconfig], "bits", (None, "4", [4], NAN)),
    ([pattern], "root", (None, "relu", torch.relu, nn.ReLU)),
]
REQUIRED = {"FixedQParamsObserver": {"scale": 0.1, "zero_point": 0}}
CASES = [(function, name, value) for functions, name, values in WRONG for function in functions for value in values]
NOUNS = {"to": "kind of model", "check": "runtime", "dtype": "integer dtype", "zero_point": "zero.point"}


def _id(value: object) -> str:
    function = getattr(value, "args", (value,))[0] if isinstance(value, partial) and value.args else value
    return getattr(getattr(function, "func", function), "__name__", None) or str(value)[:12]


@pytest.mark.parametrize(("function", "name", "value"), CASES, ids=_id)
def test_arguments_of_another_type(
    function: Callable[..., Any], name: str, value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    required = REQUIRED.get(getattr(function, "__name__", ""), {})
    with pytest.raises(FxQuantError, match=rf"(?s){NOUNS.get(name, name)}.*\n  got: .*\n  expected: "):
        function(**{**required, name: value})
    assert not [each for each in tmp_path.iterdir() if each.name != "model.fxq"]


@pytest.mark.parametrize("given", [None, 3, linear()], ids=["None", "int", "model"])
def test_print_passes_of_what_has_none(given: Any) -> None:
    with pytest.raises(FxQuantError, match=r"print_passes takes what prepare or convert gave\n  got: .*\n  hint: "):
        fxq.print_passes(given)


def test_numbers_that_are_whole_stay_allowed() -> None:
    assert LearnableFakeQuantize(quant_min=0.0, quant_max=255.0).scheme.quant_max == 255
    assert fxq.FixedQParamsObserver(torch.tensor(0.5), torch.tensor(3)).qparams().scale == 0.5
    assert fxq.get_lsq_qconfig(4, 2).weight().scheme.bits == 4
