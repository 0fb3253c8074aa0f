"""What is planned for ONNX Runtime: only what its optimizer makes integer kernels of."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxquant as fxq
from fxquant.patterns.defaults import DEFAULT_PATTERNS


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.two(F.relu(self.one(x))) + x)


X = torch.randn(2, 4, 6, 6, generator=torch.Generator().manual_seed(0))
SYMMETRIC = fxq.QConfig(
    fxq.MinMaxObserver.with_args(dtype=torch.int8, qscheme="per_tensor_symmetric"), fxq.get_default_qconfig().weight
)


def units(model: nn.Module, qconfig=None, x: torch.Tensor = X) -> list[tuple[str, bool]]:
    """Pattern of each unit, and whether its result has qparams."""
    prepared = fxq.prepare(model.eval(), x, qconfig, backend="onnxruntime")
    return [(unit.pattern, "y" in unit.roles) for unit in prepared.plan.units]


def test_every_row_names_patterns_that_exist():
    known = {pattern.name for pattern in DEFAULT_PATTERNS}
    for backend in (fxq.ONNXRUNTIME, fxq.OPENVINO, fxq.TENSORRT):
        named = [name for rule in backend.rules for name in rule.patterns]
        assert set(named) <= known
        assert len(named) == len(set(named))
        assert all(rule.patterns for rule in backend.rules)


def test_a_residual_is_a_sum_of_its_own_and_a_returned_sum_stays_float():
    model = nn.Sequential(Residual(), nn.Conv2d(4, 2, 1))
    # The last convolution is read by the user alone: with a float result it would run in float.
    assert units(model) == [("conv_act", True), ("conv", True), ("add_act", True), ("conv", True)]


def test_a_clamp_behind_symmetric_qparams_stays_float():
    model = nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU6(), nn.Conv2d(4, 4, 1))
    assert units(model) == [("conv_act", True), ("conv", True)]
    assert units(model, SYMMETRIC) == [("conv", True), ("conv", True)]


@pytest.mark.parametrize("function", [nn.Hardswish(), nn.GELU(), nn.SiLU(), nn.Tanh()], ids=lambda f: type(f).__name__)
def test_functions_stay_float_between_two_qparams(function):
    assert units(nn.Sequential(nn.Conv2d(4, 4, 1), function, nn.Conv2d(4, 4, 1))) == [("conv", True), ("conv", True)]


def test_a_linear_layer_may_give_floats():
    assert units(nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))) == [
        ("linear_act", True),
        ("linear", False),
    ]


def test_there_is_no_int8_form_here():
    prepared = fxq.prepare(nn.Linear(4, 4).eval(), torch.randn(2, 4), backend="onnxruntime")
    with pytest.raises(fxq.FxQuantError, match="backend 'onnxruntime' has no integer operators"):
        fxq.convert(prepared)
