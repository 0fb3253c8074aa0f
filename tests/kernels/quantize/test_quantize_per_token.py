"""``fxquant::quantize_per_token``: rows are measured and quantized, each by its own range."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fxquant.kernels import moving_average_qparams, quantize
from fxquant.kernels.quantize.quantize_per_token import quantize_per_token, reference

SMALLEST = torch.finfo(torch.float32).smallest_normal
CHOICES: tuple[tuple[Any, ...], ...] = (
    (SMALLEST, 0, 255, None, torch.uint8),
    (SMALLEST, -128, 127, None, torch.int8),
    (SMALLEST, -127, 127, 0, torch.int8),
    (0.01, 0, 31, None, torch.uint8),
)
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def rows(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Rows of very different size, one of them of zeros, and one of one sign."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = x * torch.logspace(-2, 2, shape[-2], dtype=torch.float64).unsqueeze(1)
    x[..., 0, :] = 0
    x[..., -1, :].abs_()
    return x.to(dtype)


@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: f"{choice[1]} to {choice[2]}")
@pytest.mark.parametrize("dtype", FLOATS)
def test_each_row_is_quantized_as_if_it_were_alone(device: str, assert_same, dtype, choice) -> None:
    eps, quant_min, quant_max, middle, to = choice
    for columns in (1, 7, 64, 600):
        x = rows(5, columns, dtype=dtype)
        q, scale, zero_point = (each.cpu() for each in quantize_per_token(x.to(device), *choice))
        unseen = torch.tensor(torch.inf)
        for row, values in enumerate(x):
            limits = {"quant_min": quant_min, "quant_max": quant_max}
            given = {"axis": None, "averaging_constant": 1.0, "eps": eps, "middle": middle, **limits}
            _, _, one_scale, one_zero_point, _ = moving_average_qparams(
                values.to(device), unseen.to(device), -unseen.to(device), **given
            )
            assert (float(scale[row]), int(zero_point[row])) == (float(one_scale), int(one_zero_point))
            alone = quantize(values.to(device), one_scale, one_zero_point, **limits, dtype=to)
            assert_same(q[row], alone.cpu())
        for got, want in zip((q, scale, zero_point), reference(x, *choice), strict=True):
            assert_same(got, want)


def test_known_values() -> None:
    x = torch.tensor([[0.0, 51.0, 255.0], [-1.0, 0.0, 1.55], [0.0, 0.0, 0.0]])
    q, scale, zero_point = quantize_per_token(x, *CHOICES[0])
    assert q.tolist() == [[0, 51, 255], [0, 100, 255], [0, 0, 0]]
    torch.testing.assert_close(scale, torch.tensor([1.0, 0.01, SMALLEST]))
    assert zero_point.tolist() == [0, 100, 0]


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_row_with_nan_and_infinities_spoils_no_other(device: str, assert_same, dtype) -> None:
    x = rows(6, 40, dtype=dtype)
    clean = quantize_per_token(x.to(device), *CHOICES[0])
    x[2, 3], x[2, 7], x[2, 9], x[4] = torch.nan, torch.inf, -torch.inf, torch.nan
    q, scale, zero_point = quantize_per_token(x.to(device), *CHOICES[0])
    others = [0, 1, 3, 5]
    for got, want in zip((q, scale, zero_point), clean, strict=True):
        assert_same(got[others].cpu(), want[others].cpu())
    assert (q[2, [3, 7, 9]].tolist(), float(scale[4]), q[4].unique().tolist()) == ([0, 255, 0], SMALLEST, [0])
    for got, want in zip((q, scale, zero_point), reference(x, *CHOICES[0]), strict=True):
        assert_same(got.cpu(), want)


@pytest.mark.parametrize("shape", [(7,), (0, 7), (3, 0), (2, 0, 7), (2, 3, 7)])
def test_any_number_of_dimensions(device: str, assert_same, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    found, wanted = quantize_per_token(x.to(device), *CHOICES[1]), reference(x, *CHOICES[1])
    assert [tuple(each.shape) for each in found] == [
        shape,
        *[(shape[:-1].numel() if isinstance(shape, torch.Size) else torch.Size(shape[:-1]).numel(),)] * 2,
    ]
    for got, want in zip(found, wanted, strict=True):
        assert_same(got.cpu(), want)


def test_views_that_are_not_contiguous(device: str, assert_same) -> None:
    x = torch.randn(4, 6, 10).to(device)
    for view in (x.transpose(1, 2), x[..., ::2], x[:1].expand(3, -1, -1)):
        for got, want in zip(
            quantize_per_token(view, *CHOICES[0]), quantize_per_token(view.contiguous(), *CHOICES[0]), strict=True
        ):
            assert_same(got, want)


@pytest.mark.parametrize(
    ("changes", "what", "got", "expected"),
    [
        (
            {"x": torch.zeros(3, 4, dtype=torch.int8)}, "x has the wrong dtype", "torch.int8",
            "float32, float64, float16 or bfloat16",
        ),
        ({"x": torch.tensor(1.0)}, "x has no dimension", "[]", "[..., columns]"),
        ({"dtype": torch.int16}, "dtype has the wrong dtype", "torch.int16", "uint8 or int8"),
        ({"quant_max": 256}, "quant_min and quant_max do not fit the integers they limit", "0 and 256", "0 to 255"),
        ({"quant_min": 9, "quant_max": 3}, "quant_min is above quant_max", "9 and 3", "quant_min <= quant_max"),
        ({"middle": 256}, "a zero point lies outside [quant_min, quant_max]", "256", "0 to 255"),
        ({"eps": float("nan")}, "eps is out of range", "nan", "a finite float32"),
    ],
)  # fmt: skip
def test_errors(changes: dict[str, Any], what: str, got: str, expected: str, assert_message) -> None:
    given = {
        "x": torch.zeros(3, 4),
        "eps": 1e-6,
        "quant_min": 0,
        "quant_max": 255,
        "middle": None,
        "dtype": torch.uint8,
    }
    for run in (quantize_per_token, reference):
        with pytest.raises(RuntimeError) as error:
            run(**given | changes)
        assert_message(error.value, f"fxquant::quantize_per_token: {what}", got, expected)


def test_opcheck() -> None:
    for shape in ((7,), (2, 3, 7)):
        torch.library.opcheck(torch.ops.fxquant.quantize_per_token.default, (torch.randn(shape), *CHOICES[2]))
