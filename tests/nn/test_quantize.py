"""Quantize, Dequantize and Requantize against the formulas, and against each other."""

from __future__ import annotations

import pytest
import torch

from fxquant.errors import CalibrationError
from fxquant.nn.quantize import Dequantize, Quantize, Requantize, every_byte
from fxquant.plan.spec import QParams, QScheme


def params(scale: float, zero_point: int, **scheme: object) -> QParams:
    return QParams(QScheme(**scheme), torch.tensor([scale]), torch.tensor([zero_point], dtype=torch.int32))


SCHEMES = [
    {"bits": 8, "signed": False},
    {"bits": 8, "signed": True},
    {"bits": 4, "signed": False},
    {"bits": 16, "signed": True},
    {"bits": 8, "signed": True, "limits": (-127, 127)},
]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_quantize_rounds_to_the_grid(scheme: dict) -> None:
    y = params(0.13, 3, **scheme)
    x = torch.cat([torch.linspace(-50, 50, 4001), torch.tensor([float("inf"), -float("inf"), float("nan")])])
    module = Quantize(y)

    got = module(x)

    steps = torch.round(x * (1.0 / y.scale)) + 3
    want = steps.nan_to_num(nan=-1e9).clamp(y.scheme.quant_min, y.scheme.quant_max)
    assert got.dtype == y.scheme.dtype
    assert torch.equal(got.float(), want)
    assert torch.equal(module.reference(x), got)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_dequantize_gives_the_value_of_every_integer(scheme: dict) -> None:
    x = params(0.13, 3, **scheme)
    q = torch.arange(x.scheme.quant_min, x.scheme.quant_max + 1).to(x.scheme.dtype)
    module = Dequantize(x)

    got = module(q)

    assert got.dtype == torch.float32
    assert torch.equal(got, (q.int() - 3) * x.scale)
    assert torch.equal(module.reference(q), got)
    assert torch.equal(Quantize(x)(got), q)


def test_images_become_channels_last_where_asked() -> None:
    y, image = params(0.1, 0, bits=8, signed=False), torch.rand(2, 3, 5, 7) * 20
    turning, keeping = Quantize(y, channels_last=True), Quantize(y)

    assert turning(image).is_contiguous(memory_format=torch.channels_last)
    assert turning.reference(image).is_contiguous(memory_format=torch.channels_last)
    assert keeping(image).is_contiguous()
    assert torch.equal(turning(image), keeping(image))
    assert torch.equal(turning(image[0]), keeping(image[0]))  # no image: kept as it is


def test_every_byte_comes_in_the_order_of_its_bits() -> None:
    assert every_byte(params(1.0, 0, bits=8, signed=False)).tolist() == list(range(256))
    assert every_byte(params(1.0, 0, bits=8, signed=True)).tolist() == [*range(128), *range(-128, 0)]


@pytest.mark.parametrize("signed", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("bits", [8, 4])
def test_requantize_equals_dequantize_then_quantize(signed: tuple[bool, bool], bits: int) -> None:
    x, y = params(0.07, 5, bits=8, signed=signed[0]), params(0.11, 2, bits=bits, signed=signed[1])
    module, q = Requantize(x, y), every_byte(x).reshape(4, 4, 4, 4)

    got = module(q)

    assert module.by_table
    assert torch.equal(got, Quantize(y)(Dequantize(x)(q)))
    assert torch.equal(module.reference(q), got)
    assert got.dtype == y.scheme.dtype


def test_wider_grids_are_requantized_without_a_table() -> None:
    x, y = params(0.001, 0, bits=16, signed=True), params(0.2, 9, bits=8, signed=False)
    module, q = Requantize(x, y), torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16)

    got = module(q)

    assert not module.by_table
    assert torch.equal(got, Quantize(y)(Dequantize(x)(q)))
    assert torch.equal(module.reference(q), got)


def test_a_loaded_state_fills_the_table_anew() -> None:
    x, y, other = (params(scale, 0, bits=8, signed=False) for scale in (0.1, 0.2, 0.4))
    module, q = Requantize(x, y), torch.arange(256, dtype=torch.int32).to(torch.uint8)
    module(q)

    module.load_state_dict(Requantize(x, other).state_dict())

    assert torch.equal(module(q), Requantize(x, other)(q))


@pytest.mark.parametrize("make", [Quantize, Dequantize, lambda qparams: Requantize(qparams, qparams)])
def test_uncalibrated_ones_raise(make) -> None:
    module = make(params(float("nan"), 0, bits=8, signed=False))

    with pytest.raises(CalibrationError, match="converted without calibration"):
        module(torch.zeros(3, dtype=torch.float32 if make is Quantize else torch.uint8))
    with pytest.raises(CalibrationError, match="converted without calibration"):
        module.reference(torch.zeros(3, dtype=torch.float32 if make is Quantize else torch.uint8))


def test_printing_shows_the_grids() -> None:
    x, y = params(0.1, 3, bits=8, signed=False), params(0.25, 0, bits=4, signed=True)

    assert repr(Quantize(x, channels_last=True)) == "Quantize(y: uint8 scale=0.1 zero_point=3, channels_last=True)"
    assert repr(Requantize(x, y)) == "Requantize(x: uint8 scale=0.1 zero_point=3, y: int4 scale=0.25 zero_point=0)"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_dequantize_gives_the_dtype_of_the_value_that_it_stands_for(dtype: torch.dtype) -> None:
    x = params(0.13, 3, bits=8, signed=False)
    module, q = Dequantize(x, dtype), every_byte(x)

    assert module(q).dtype == dtype
    assert torch.equal(module(q), Dequantize(x)(q).to(dtype))
    assert torch.equal(module.reference(q), module(q))
    assert repr(module) == f"Dequantize(x: uint8 scale=0.13 zero_point=3, y: {str(dtype).removeprefix('torch.')})"


def test_dequantize_follows_when_the_model_is_cast() -> None:
    x = params(0.13, 3, bits=8, signed=False)
    module = Dequantize(x)

    assert module.half()(every_byte(x)).dtype == torch.float16
    assert module.x_scale.dtype == torch.float32
    assert module.to("cpu")(every_byte(x)).dtype == torch.float16
    assert module.float()(every_byte(x)).dtype == torch.float32


def test_dequantize_gives_contiguous_images_where_asked() -> None:
    x = params(0.13, 3, bits=8, signed=False)
    q = every_byte(x).reshape(2, 4, 4, 8).contiguous(memory_format=torch.channels_last)
    keeping, turning = Dequantize(x), Dequantize(x, contiguous=True)

    assert keeping(q).stride() == keeping.reference(q).stride() == q.stride()
    assert turning(q).is_contiguous()
    assert turning.reference(q).is_contiguous()
    assert torch.equal(turning(q), keeping(q))
    assert repr(turning) == "Dequantize(x: uint8 scale=0.13 zero_point=3, y: float32 contiguous)"
