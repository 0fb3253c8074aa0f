"""``fxquant::resample2d``: native = reference, and the reference against torch in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fxquant.kernels.pool.resample2d import reference, resample2d

FLOAT32 = 1e-3
"""In steps: what float32 sums of a few products of bytes are wrong by, at most."""


def taps(size: int, outputs: int, count: int, device: str = "cpu") -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(outputs)
    start = torch.randint(0, size - count + 1, (outputs,), generator=generator)
    weight = torch.rand(outputs, count, generator=generator) - 0.2
    return start.to(device), weight.to(device)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
@pytest.mark.parametrize("shape", [(2, 3, 6, 7), (2, 37, 6, 7), (1, 130, 6, 7), (5, 6, 7)])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("counts", [(1, 2), (2, 1), (2, 2), (4, 4), (3, 5)])
def test_native_is_reference(device, stored, assert_same, dtype, shape, channels_last, counts) -> None:
    x = stored(*shape, dtype=dtype, channels_last=channels_last and len(shape) == 4)
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    axes = (*taps(6, 9, counts[0], device), *taps(7, 5, counts[1], device))
    for rest in ((0.1, 3, 0.2, 7, low, high), (0.1, 3, 0.05, 7, low + 10, high - 10)):
        assert_same(resample2d(x, *axes, *rest), reference(x, *axes, *rest))


def test_many_rows_in_several_tasks(device, stored, assert_same) -> None:
    x = stored(2, 16, 40, 50, channels_last=True)
    arguments = (*taps(40, 160, 2, device), *taps(50, 200, 2, device), 0.1, 3, 0.1, 3, 0, 255)
    assert_same(resample2d(x, *arguments), reference(x, *arguments))


def test_no_images(device, stored, assert_same) -> None:
    for x, outputs in ((stored(0, 3, 6, 7), 5), (stored(2, 3, 6, 7), 0)):
        arguments = (*taps(6, outputs, 2, device), *taps(7, 5, 2, device), 0.1, 3, 0.1, 3, 0, 255)
        assert_same(resample2d(x, *arguments), reference(x, *arguments))


def test_the_reference_is_a_product_of_matrices(stored) -> None:
    x = stored(2, 3, 6, 7)
    (rows, row_weight), (columns, column_weight) = taps(6, 9, 3), taps(7, 5, 2)
    down, across = torch.zeros(9, 6, dtype=torch.float64), torch.zeros(5, 7, dtype=torch.float64)
    down.scatter_(1, rows[:, None] + torch.arange(3), row_weight.double())
    across.scatter_(1, columns[:, None] + torch.arange(2), column_weight.double())
    steps = down @ (x.double() - 100) @ across.T * 0.1 / 0.15 + 90
    got = reference(x, rows, row_weight, columns, column_weight, 0.1, 100, 0.15, 90, 0, 255)
    assert (got.double() - steps.clamp(0, 255)).abs().max() <= 0.5 + FLOAT32


@pytest.mark.parametrize(
    ("changes", "what", "got", "expected"),
    [
        ({"x": torch.zeros(2, 2, dtype=torch.uint8)}, "x has the wrong shape", "[2, 2]",
         "[N, C, H, W] or [C, H, W], of which only N may be 0"),
        ({"row_start": torch.zeros(3)}, "row_start has the wrong dtype", "torch.float32", "int64"),
        ({"row_weight": torch.zeros(3, 2).double()}, "row_weight has the wrong dtype", "torch.float64", "float32"),
        ({"row_weight": torch.zeros(3, 5)}, "row_start and row_weight do not fit", "[3] and [3, 5]",
         "[n] and [n, k], with k from 1 to 4"),
        ({"column_weight": torch.zeros(2, 2)}, "column_start and column_weight do not fit", "[3] and [2, 2]",
         "[n] and [n, k], with k from 1 to 4"),
        ({"column_start": torch.tensor([0, 3, 1])}, "column_start is out of range", "0 to 3", "0 to 2"),
        ({"row_start": torch.tensor([0, -1, 1])}, "row_start is out of range", "-1 to 1", "0 to 2"),
        ({"x_scale": 0.0}, "x_scale is unusable", "0", "a positive, normal float32"),
    ],
)  # fmt: skip
def test_errors(changes, what, got, expected) -> None:
    arguments = {
        "x": torch.zeros(1, 2, 4, 4, dtype=torch.uint8),
        "row_start": torch.zeros(3, dtype=torch.int64), "row_weight": torch.zeros(3, 2),
        "column_start": torch.zeros(3, dtype=torch.int64), "column_weight": torch.zeros(3, 2),
        "x_scale": 0.1, "x_zero_point": 0, "scale": 0.1, "zero_point": 0, "quant_min": 0, "quant_max": 255,
    } | changes  # fmt: skip
    for run in (resample2d, reference):
        with pytest.raises(RuntimeError) as error:
            run(**arguments)
        assert str(error.value) == f"fxquant::resample2d: {what}\n  got:      {got}\n  expected: {expected}"


@pytest.mark.parametrize("channels_last", [False, True])
def test_opcheck(stored, channels_last) -> None:
    arguments = (*taps(4, 7, 2), *taps(5, 3, 4), 0.1, 3, 0.2, 7, 0, 255)
    x = stored(2, 3, 4, 5, channels_last=channels_last)
    torch.library.opcheck(torch.ops.fxquant.resample2d.default, (x, *arguments))
