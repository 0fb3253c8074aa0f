"""QuantizedTable against the function itself."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fxquant.errors import LoweringError
from fxquant.nn.quantize import every_byte
from fxquant.nn.table import ElementFunction, QuantizedFunction, QuantizedTable
from fxquant.plan.spec import Clamp, QParams, QScheme


def qparams(scale: float, zero_point: int, signed: bool = False, bits: int = 8) -> QParams:
    scheme = QScheme(bits=bits, signed=signed)
    return QParams(scheme, torch.tensor([scale]), torch.tensor([zero_point], dtype=torch.int32))


def reciprocal(x: Tensor) -> Tensor:
    return 1.0 / x


def expected(function: Callable[[Tensor], Tensor], q: Tensor, x: QParams, y: QParams) -> Tensor:
    steps = torch.round(function((q.int() - x.zero_point) * x.scale) * (1.0 / y.scale)) + y.zero_point
    steps = torch.where(steps.isnan(), torch.tensor(float(y.scheme.quant_min)), steps)
    return steps.clamp(y.scheme.quant_min, y.scheme.quant_max)


@pytest.mark.parametrize("signs", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("function", [F.hardswish, torch.sigmoid, torch.tanh, torch.log, reciprocal])
def test_every_byte(function: Callable[[Tensor], Tensor], signs: tuple[bool, bool]) -> None:
    """Negative logarithms (NaN), infinite reciprocals and all that lies between."""
    x, y = qparams(0.05, 7, signs[0]), qparams(0.03, 9, signs[1])
    q = every_byte(x)
    module = QuantizedTable(function, x, y)
    assert module(q).dtype == y.scheme.dtype
    assert torch.equal(module(q).float(), expected(function, q, x, y))
    assert torch.equal(module.reference(q), module(q))


@pytest.mark.parametrize("clamp", [Clamp(0.0, None), Clamp(0.0, 6.0), Clamp(-1.0, 1.0), Clamp(None, 2.0), Clamp()])
def test_a_clamp_is_a_function(clamp: Clamp) -> None:
    x, y = qparams(0.05, 100), qparams(0.04, 50)
    q = every_byte(x)
    low = -float("inf") if clamp.low is None else clamp.low
    high = float("inf") if clamp.high is None else clamp.high
    assert torch.equal(QuantizedTable(clamp, x, y)(q).float(), expected(lambda real: real.clamp(low, high), q, x, y))


def test_memory_order_stays() -> None:
    q = torch.zeros(2, 3, 4, 4, dtype=torch.uint8).contiguous(memory_format=torch.channels_last)
    y = QuantizedTable(torch.sigmoid, qparams(0.05, 7), qparams(1 / 256, 0))(q)
    assert y.is_contiguous(memory_format=torch.channels_last)


def test_state_travels_and_the_table_follows_it() -> None:
    x, y = qparams(0.05, 7), qparams(0.03, 9)
    q = every_byte(x)
    module = QuantizedTable(torch.sigmoid, x, y)
    before = module(q)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(other(q), before)
    module.load_state_dict({**module.state_dict(), "y_scale": torch.tensor([0.01])})
    assert torch.equal(module(q).float(), expected(torch.sigmoid, q, x, qparams(0.01, 9)))


def test_a_grid_that_fits_no_byte_is_refused() -> None:
    with pytest.raises(LoweringError) as error:
        QuantizedTable(torch.sigmoid, qparams(0.1, 0, bits=16), qparams(0.1, 0))
    assert str(error.value) == (
        "int8 operators cannot take the qparams of the input\n"
        "  got:      uint16 affine per tensor\n"
        "  expected: at most 8 bits, one scale and zero point for the whole tensor"
    )


def test_printing() -> None:
    assert repr(QuantizedTable(torch.sigmoid, qparams(0.05, 7), qparams(0.03, 9))) == (
        "QuantizedTable(sigmoid, x: uint8 scale=0.05 zero_point=7, y: uint8 scale=0.03 zero_point=9)"
    )
    assert repr(QuantizedTable(Clamp(0.0, None), qparams(0.05, 7), qparams(0.03, 9))).startswith(
        "QuantizedTable(Clamp(low=0.0, high=None), x: "
    )
    gelu = ElementFunction(F.gelu, keywords={"approximate": "tanh"})
    assert repr(QuantizedTable(gelu, qparams(0.05, 7), qparams(0.03, 9))).startswith(
        "QuantizedTable(gelu(x, approximate='tanh'), x: "
    )


def divide(a: Tensor, b: Tensor) -> Tensor:
    return a / b


@pytest.mark.parametrize(
    ("function", "same", "text"),
    [
        (ElementFunction(F.leaky_relu, after=(0.2,)), lambda x: F.leaky_relu(x, 0.2), "leaky_relu(x, 0.2)"),
        (ElementFunction(torch.rsub, after=(1,)), lambda x: 1 - x, "rsub(x, 1)"),
        (ElementFunction(divide, before=(2,)), lambda x: 2 / x, "divide(2, x)"),
        (ElementFunction(F.elu, after=(0.5,)), lambda x: F.elu(x, 0.5), "elu(x, 0.5)"),
    ],
)
def test_a_call_with_its_numbers_is_a_function(function, same, text) -> None:
    x = torch.linspace(0.5, 3, 7)
    assert str(function) == text
    assert torch.equal(pickle.loads(pickle.dumps(function))(x), same(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_real_numbers_are_rounded_once_behind_the_function(dtype):
    x = torch.linspace(-20, 20, 33, dtype=dtype).reshape(3, 11).t()
    module = QuantizedFunction(torch.tanh, qparams(2 / 256, 128))
    wanted = (torch.tanh(x).float() * 128).round().add(128).clamp(0, 255)
    assert torch.equal(module(x).float(), wanted)
    assert torch.equal(module.reference(x), module(x))
    assert module(x).stride() == x.stride()
    assert torch.equal(pickle.loads(pickle.dumps(module))(x), module(x))
