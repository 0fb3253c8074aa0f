"""``fxquant::prelu``. It walks as ``fxquant::add`` does, whose tests try all layouts."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fxquant.kernels.elementwise.prelu import prelu, reference
from fxquant.kernels.quantize.dequantize import reference as dequantize
from fxquant.kernels.quantize.quantize import reference as quantize

GENERATOR = torch.Generator().manual_seed(0)


def slopes(*shape: int) -> Tensor:
    return torch.rand(shape, generator=GENERATOR) * 2 - 1


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("shape", [(37, 1, 1), (1, 37, 1, 1), (1,), (), (9, 11), (2, 37, 9, 11)])
def test_native_is_reference(device, stored, assert_same, dtype, channels_last, shape) -> None:
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    x, slope = stored(2, 37, 9, 11, dtype=dtype, channels_last=channels_last), slopes(*shape).to(device)
    for rest in ((0.2, 7, low, high), (0.05, 7, low + 10, high - 10)):
        assert_same(prelu(x, 0.1, 3, slope, *rest), reference(x, 0.1, 3, slope, *rest))


@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (7, 65), (3, 50021)])
def test_rows_of_features(device, stored, assert_same, shape) -> None:
    x, slope = stored(*shape), slopes(shape[1]).to(device)
    assert_same(prelu(x, 0.1, 99, slope, 0.1, 50, 0, 255), reference(x, 0.1, 99, slope, 0.1, 50, 0, 255))


def test_it_is_the_float_function_between_the_grids(isa) -> None:
    q = torch.arange(256, dtype=torch.int32).to(torch.uint8).repeat(3, 1).T.contiguous()
    slope = torch.tensor([0.25, -0.5, 3.0])
    real = F.prelu(dequantize(q, torch.tensor([0.1]), torch.tensor([100])), slope)
    expected = quantize(real, torch.tensor([0.07]), torch.tensor([60]), 0, 255, torch.uint8)
    assert torch.equal(prelu(q, 0.1, 100, slope, 0.07, 60, 0, 255), expected)


@pytest.mark.parametrize(
    ("changes", "what", "got", "expected"),
    [
        ({"slope": torch.zeros(2, dtype=torch.float64)}, "slope has the wrong dtype", "torch.float64", "float32"),
        (
            {"slope": torch.zeros(3)},
            "slope does not broadcast to x",
            "[3] and [4, 2]",
            "sizes that are equal or 1, from the last dimension on",
        ),
        (
            {"slope": torch.zeros(1, 4, 2)},
            "slope does not broadcast to x",
            "[1, 4, 2] and [4, 2]",
            "sizes that are equal or 1, from the last dimension on",
        ),
        ({"x_zero_point": 300}, "x_zero_point is out of range", "300", "0 to 255"),
        ({"scale": -1.0}, "scale is unusable", "-1", "a positive, normal float32"),
    ],
)
def test_errors(changes, what, got, expected) -> None:
    arguments = {
        "x": torch.zeros(4, 2, dtype=torch.uint8), "x_scale": 0.1, "x_zero_point": 0, "slope": torch.zeros(2),
        "scale": 0.1, "zero_point": 0, "quant_min": 0, "quant_max": 255,
    } | changes  # fmt: skip
    for run in (prelu, reference):
        with pytest.raises(RuntimeError) as error:
            run(**arguments)
        assert str(error.value) == f"fxquant::prelu: {what}\n  got:      {got}\n  expected: {expected}"


@pytest.mark.parametrize("channels_last", [False, True])
def test_opcheck(stored, channels_last) -> None:
    x = stored(2, 5, 4, 4, channels_last=channels_last)
    torch.library.opcheck(torch.ops.fxquant.prelu.default, (x, 0.1, 3, torch.rand(5, 1, 1), 0.2, 7, 0, 255))
