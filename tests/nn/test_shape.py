"""Interpolation of stored integers against torch's own, in float64."""

from __future__ import annotations

import pickle

import pytest
import torch
import torch.nn.functional as F

from fxquant.errors import LoweringError
from fxquant.nn.shape import QuantizedInterpolate, QuantizedPad, interpolate, taps_of
from fxquant.plan.spec import QParams, QScheme

X = QParams(QScheme(signed=False), torch.tensor([0.1]), torch.tensor([100], dtype=torch.int32))
Y = QParams(QScheme(signed=False), torch.tensor([0.13]), torch.tensor([90], dtype=torch.int32))
FLOAT32 = 2e-3
"""In steps: torch takes the weights, and the places that they stand for, in float32."""

CASES = {
    "twice": ((2, 3, 5, 6), (None, 2, "bilinear", False)),
    "a size": ((2, 3, 5, 6), ((9, 4), None, "bilinear", False)),
    "corners": ((2, 3, 5, 6), ((9, 11), None, "bilinear", True)),
    "two factors": ((2, 3, 5, 6), (None, (1.7, 0.6), "bilinear", False)),
    "two factors, taken from the sizes": ((2, 3, 5, 6), (None, (1.7, 0.6), "bilinear", False, True)),
    "cubic": ((2, 3, 8, 9), (None, 1.5, "bicubic", False)),
    "cubic corners": ((2, 3, 8, 9), ((5, 13), None, "bicubic", True)),
    "smoothed": ((2, 3, 16, 20), ((5, 7), None, "bilinear", False, None, True)),
    "smoothed cubic": ((2, 3, 16, 20), ((5, 7), None, "bicubic", False, None, True)),
    "one row": ((1, 2, 1, 1), ((3, 3), None, "bilinear", False)),
    "the same size": ((2, 3, 5, 6), ((5, 6), None, "bilinear", False)),
    "linear": ((2, 3, 7), (None, 2, "linear", False)),
    "linear corners": ((2, 3, 7), (5, None, "linear", True)),
}


def bytes_of(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", CASES)
def test_against_torch(name) -> None:
    shape, arguments = CASES[name]
    q = bytes_of(*shape)
    module = QuantizedInterpolate(*arguments, x=X, y=Y)
    real = F.interpolate((q.float() - 100) * X.scale, *arguments)
    steps = (real.double() / Y.scale.double() + 90).clamp(0, 255)
    got = module(q)
    assert got.shape == steps.shape
    assert float((got.double() - steps).abs().max()) <= 0.5 + FLOAT32
    assert torch.equal(module.reference(q), got)
    assert torch.equal(pickle.loads(pickle.dumps(module))(q), got)
    if q.dim() == 4:
        again = module(q.contiguous(memory_format=torch.channels_last))
        assert torch.equal(again, got)


def test_a_call_may_bring_its_size() -> None:
    q = bytes_of(2, 3, 5, 6)
    module = QuantizedInterpolate(None, None, "bilinear", False, x=X, y=Y)
    expected = QuantizedInterpolate((9, 4), None, "bilinear", False, x=X, y=Y)(q)
    assert torch.equal(module(q, torch.Size((9, 4))), expected)
    assert torch.equal(module.reference(q, [9, 4]), expected)
    assert module(q, None, 3.0).shape == (2, 3, 15, 18)


@pytest.mark.parametrize("name", ["twice", "linear"])
def test_weights_are_float32_whatever_dtype_torch_makes_by_default(name, float64_by_default) -> None:
    shape, arguments = CASES[name]
    q = bytes_of(*shape)
    taps_of.cache_clear()
    got = QuantizedInterpolate(*arguments, x=X, y=Y)(q)
    torch.set_default_dtype(torch.float32)
    taps_of.cache_clear()
    assert torch.equal(got, QuantizedInterpolate(*arguments, x=X, y=Y)(q))


def test_weights_are_few_and_sum_to_one() -> None:
    for mode, count in (("linear", 2), ("bilinear", 2), ("bicubic", 4)):
        start, weight = taps_of(10, 23, None, mode, False, None, False, torch.device("cpu"))
        assert weight.shape == (23, count)
        assert torch.allclose(weight.sum(1), torch.ones(23))
        assert int(start.min()) == 0
        assert int(start.max()) == 10 - count


def test_printing() -> None:
    text = repr(QuantizedInterpolate(None, 2, "bilinear", False, x=X, y=Y))
    assert text.splitlines()[1].strip() == "scale_factor=2, mode='bilinear', align_corners=False, antialias=False"


def qparams(zero_point: int, signed: bool, bits: int = 8) -> QParams:
    scheme = QScheme(bits=bits, signed=signed)
    return QParams(scheme, torch.tensor([0.1]), torch.tensor([zero_point], dtype=torch.int32))


def data_movement_bytes_of(dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(2 * 3 * 4 * 4).to(torch.uint8).view(dtype).reshape(2, 3, 4, 4)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("arguments", [(None, 2.0, "nearest"), ((3, 9), None, "nearest-exact")])
def test_interpolation_repeats_what_is_stored(dtype, layout, arguments) -> None:
    q = data_movement_bytes_of(dtype).contiguous(memory_format=layout)
    y = interpolate(q, *arguments)
    assert y.dtype == dtype
    assert torch.equal(y.float(), F.interpolate(q.float(), *arguments))


@pytest.mark.parametrize(("zero_point", "signed"), [(7, False), (255, False), (-128, True), (-3, True)])
@pytest.mark.parametrize("widths", [(1, 2), (1, 0, 2, 3), (-1, 2, 0, -1)])
def test_padding_is_the_zero_point(zero_point, signed, widths) -> None:
    x = qparams(zero_point, signed)
    q = data_movement_bytes_of(x.scheme.dtype)
    module = QuantizedPad(widths, x)
    real = (module(q).int() - zero_point) * 0.1
    assert torch.equal(real, F.pad((q.int() - zero_point) * 0.1, widths))
    assert torch.equal(module.reference(q), module(q))
    assert torch.equal(pickle.loads(pickle.dumps(module))(q), module(q))


def test_the_zero_point_follows_the_state() -> None:
    module = QuantizedPad((1, 1), qparams(7, False))
    q = data_movement_bytes_of(torch.uint8)
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
    q = data_movement_bytes_of(torch.uint8)
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
    q = data_movement_bytes_of(torch.uint8)
    assert torch.equal(module(q, (1, 2)), QuantizedPad((1, 2), qparams(7, False))(q))
    assert torch.equal(module.reference(q, (1, 2)), module(q, (1, 2)))
    assert repr(module).startswith("QuantizedPad(computed widths, y: uint8")


def test_a_grid_that_fits_no_byte_is_refused() -> None:
    with pytest.raises(LoweringError, match="int8 operators cannot take the qparams of the output"):
        QuantizedPad((1, 1), qparams(0, False, bits=16))
