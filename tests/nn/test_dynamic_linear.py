"""A linear layer that measures its input, by every kernel that can run it."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from torch import nn

from fxquant.errors import InputError, KernelError, LoweringError
from fxquant.fake_quantize.dynamic import DynamicFakeQuantize
from fxquant.fake_quantize.qparams import fake_quantize
from fxquant.nn import QuantizedDynamicLinear, kernel_selection
from fxquant.nn.base import FloatResult
from fxquant.observers import MinMaxObserver, PerChannelMinMaxObserver
from fxquant.plan.spec import Dynamic, QParams, QScheme
from fxquant.settings import Settings

FLOAT_SUMS = 1e-5
"""Integer sums are exact, float32 sums of 40 products of the simulation are not: relative to the largest result."""

PER_ROW = QScheme(symmetric=True, axis=0)
INPUTS = (QScheme(signed=False), QScheme(symmetric=True), QScheme(bits=5, signed=False))


def layer(bias: bool = True) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(40, 6, bias=bias)


def made(linear: nn.Linear, x: QScheme = INPUTS[0], weight: QScheme = PER_ROW) -> QuantizedDynamicLinear:
    return QuantizedDynamicLinear(linear, x=Dynamic(x), weight=qparams_of(linear.weight, weight))


def qparams_of(weight: torch.Tensor, scheme: QScheme) -> QParams:
    observer = (MinMaxObserver if scheme.axis is None else PerChannelMinMaxObserver)(scheme=scheme)
    observer(weight.detach())
    return observer.qparams()


def data(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, 40, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("weight", [PER_ROW, QScheme(bits=4, symmetric=True)], ids=str)
@pytest.mark.parametrize("x", INPUTS, ids=str)
def test_it_is_the_simulation_and_the_reference(x, weight, bias):
    linear = layer(bias)
    module, qparams = made(linear, x, weight), qparams_of(linear.weight, weight)
    rounded = fake_quantize(linear.weight.detach(), qparams.scale, qparams.zero_point, weight)
    for shape in ((), (3,), (2, 3), (64,)):
        for factor in (1.0, 30.0):
            inputs = data(*shape) * factor
            y = module(inputs)
            assert y.shape == (*shape, 6)
            assert torch.equal(module.reference(inputs), y)
            expected = nn.functional.linear(DynamicFakeQuantize(Dynamic(x))(inputs), rounded, linear.bias).detach()
            torch.testing.assert_close(y, expected, rtol=0, atol=FLOAT_SUMS * float(expected.abs().max()))


def test_the_reference_runs_where_no_kernel_does(monkeypatch):
    module = made(layer())
    expected = module(data(5))
    monkeypatch.setattr("fxquant.nn.dynamic_linear.native_refusal", lambda *arguments: "no kernels today")
    module.invalidate()
    assert module.kernel() == "reference: no kernels today"
    assert torch.equal(module(data(5)), expected)
    monkeypatch.setattr(kernel_selection, "SETTINGS", Settings(kernels="native"))
    module.invalidate()
    with pytest.raises(KernelError, match="no kernel runs this layer"):
        module(data(5))


def test_no_samples_and_no_numbers():
    module = made(layer())
    assert module(data(0)).shape == module.reference(data(0)).shape == (0, 6)
    y = module(torch.full((1, 40), math.nan))
    assert torch.equal(y[0], module.bias)


def test_results_have_the_form_that_is_asked_for():
    module = made(layer())
    module.float_result = FloatResult(torch.bfloat16)
    assert torch.equal(module(data(3)), made(layer())(data(3)).bfloat16())
    assert made(layer()).double()(data(3).double()).dtype == torch.float64


def test_state_travels():
    module, fresh = made(layer()), made(nn.Linear(40, 6))
    before = module(data(3))
    assert not torch.equal(fresh(data(3)), before)
    fresh.load_state_dict(module.state_dict())
    assert list(module.state_dict()) == ["weight", "bias", "weight_scale", "weight_zero_point"]
    for other in (fresh, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(other(data(3)), before)


def test_a_weight_grid_that_bytes_do_not_hold_is_refused():
    with pytest.raises(LoweringError, match="int8 operators cannot take this weight grid"):
        made(layer(), weight=QScheme(axis=0, group_size=10, symmetric=True))


def test_printing():
    linear = layer(bias=False)
    linear.weight.data.fill_(1.0)
    assert repr(made(linear, weight=QScheme(symmetric=True))) == (
        "QuantizedDynamicLinear(\n"
        "  40, 6, bias=False\n"
        "  x: uint8 affine per tensor per call, weight: int8 scale=0.007843 zero_point=0, y: float32\n"
        ")"
    )


@pytest.mark.parametrize("bias", [True, False])
def test_of_no_rows_and_of_no_columns(bias):
    weight = QParams(QScheme(symmetric=True), torch.ones(1), torch.zeros(1, dtype=torch.int32))
    for linear, x in ((nn.Linear(40, 6, bias=bias), data(0)), (no_columns(bias), torch.zeros(3, 0))):
        module = QuantizedDynamicLinear(linear, x=Dynamic(INPUTS[0]), weight=weight)
        with torch.no_grad():
            assert torch.equal(module(x), linear(x))
            assert torch.equal(module.reference(x), linear(x))


def no_columns(bias: bool) -> nn.Linear:
    linear = layer(bias)
    linear.weight = nn.Parameter(torch.zeros(6, 0))
    return linear


@pytest.mark.parametrize("shape", [(2, 39), (0, 39)])
def test_an_input_of_another_shape_is_refused(shape):
    module = made(layer())
    module.unit = "head"
    for call in (module, module.reference):
        with pytest.raises(InputError) as caught:
            call(torch.zeros(shape))
        assert str(caught.value) == (
            "the input of a quantized linear layer has the wrong shape\n"
            "  at:       head\n"
            f"  got:      39 features in {list(shape)}\n"
            "  expected: 40 features: [..., 40]"
        )
