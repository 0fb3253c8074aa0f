"""Moves of stored integers that torch has for floats only, or that need a grid."""

from __future__ import annotations

import pickle

import pytest
import torch
import torch.nn.functional as F

from fxquant.errors import LoweringError
from fxquant.nn.data_movement import QuantizedPad, interpolate
from fxquant.plan.spec import QParams, QScheme


def qparams(zero_point: int, signed: bool, bits: int = 8) -> QParams:
    scheme = QScheme(bits=bits, signed=signed)
    return QParams(scheme, torch.tensor([0.1]), torch.tensor([zero_point], dtype=torch.int32))


def bytes_of(dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(2 * 3 * 4 * 4).to(torch.uint8).view(dtype).reshape(2, 3, 4, 4)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("arguments", [(None, 2.0, "nearest"), ((3, 9), None, "nearest-exact")])
def test_interpolation_repeats_what_is_stored(dtype, layout, arguments) -> None:
    q = bytes_of(dtype).contiguous(memory_format=layout)
    y = interpolate(q, *arguments)
    assert y.dtype == dtype
    assert torch.equal(y.float(), F.interpolate(q.float(), *arguments))


@pytest.mark.parametrize(("zero_point", "signed"), [(7, False), (255, False), (-128, True), (-3, True)])
@pytest.mark.parametrize("widths", [(1, 2), (1, 0, 2, 3), (-1, 2, 0, -1)])
def test_padding_is_the_zero_point(zero_point, signed, widths) -> None:
    x = qparams(zero_point, signed)
    q = bytes_of(x.scheme.dtype)
    module = QuantizedPad(widths, x)
    real = (module(q).int() - zero_point) * 0.1
    assert torch.equal(real, F.pad((q.int() - zero_point) * 0.1, widths))
    assert torch.equal(module.reference(q), module(q))
    assert torch.equal(pickle.loads(pickle.dumps(module))(q), module(q))


def test_the_zero_point_follows_the_state() -> None:
    module = QuantizedPad((1, 1), qparams(7, False))
    q = bytes_of(torch.uint8)
    module(q)
    nine = torch.tensor([9], dtype=torch.int32)
    module.load_state_dict({**module.state_dict(), "x_zero_point": nine, "y_zero_point": nine})
    assert int(module(q)[0, 0, 0, 0]) == 9
    assert repr(module) == "QuantizedPad([1, 1], y: uint8 scale=0.1 zero_point=9, x: uint8 scale=0.1 zero_point=9)"


@pytest.mark.parametrize(
    ("y", "filling"), [(qparams(7, False), 12), (qparams(-128, True), -123)], ids=["same", "another"]
)
def test_another_number_has_its_place_on_the_grid_of_the_output(y, filling) -> None:
    x = qparams(7, False)
    q = bytes_of(torch.uint8)
    module = QuantizedPad((1, 0), x, y, 0.5)
    result = module(q)
    assert result.dtype == y.scheme.dtype
    assert (result[..., 0] == filling).all()
    assert torch.equal(
        result[..., 1:].int(), (q.int() + int(y.zero_point) - 7).clamp(y.scheme.quant_min, y.scheme.quant_max)
    )
    assert torch.equal(module.reference(q), result)
    assert "value=0.5" in repr(module)


def test_widths_may_come_with_the_call() -> None:
    module = QuantizedPad(None, qparams(7, False))
    q = bytes_of(torch.uint8)
    assert torch.equal(module(q, (1, 2)), QuantizedPad((1, 2), qparams(7, False))(q))
    assert torch.equal(module.reference(q, (1, 2)), module(q, (1, 2)))
    assert repr(module).startswith("QuantizedPad(computed widths, y: uint8")


def test_a_grid_that_fits_no_byte_is_refused() -> None:
    with pytest.raises(LoweringError, match="int8 operators cannot take the grid of the output"):
        QuantizedPad((1, 1), qparams(0, False, bits=16))
