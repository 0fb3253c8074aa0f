"""The integer matrix product against int64."""

from __future__ import annotations

import pytest
import torch

from fxquant.kernels.epilogue import Epilogue
from fxquant.kernels.linear.reference import linear_reference


def make(features: int) -> Epilogue:
    return Epilogue(
        x_scale=0.02,
        weight_scale=torch.linspace(0.001, 0.01, features),
        bias=torch.linspace(-3, 3, features),
        y_scale=0.3,
        y_zero_point=100,
        quant_min=0,
        quant_max=255,
        dtype=torch.uint8,
    )


@pytest.mark.parametrize("shape", [(5, 40), (2, 3, 40), (40,), (0, 40), (2, 0, 40)])
@pytest.mark.parametrize(("dtype", "x_zero", "w_zero"), [(torch.uint8, 128, 0), (torch.int8, 3, -20)])
def test_sums_are_exact(shape: tuple[int, ...], dtype: torch.dtype, x_zero: int, w_zero: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(torch.iinfo(dtype).min, torch.iinfo(dtype).max + 1, shape, generator=generator, dtype=dtype)
    weight = torch.randint(-128, 128, (7, 40), generator=generator, dtype=torch.int8)
    zeros = torch.full((7,), w_zero, dtype=torch.int32)

    got = linear_reference(x, x_zero, weight, zeros, make(7))

    sums = ((x.long() - x_zero).unsqueeze(-2) * (weight.long() - w_zero)).sum(-1)
    assert got.shape == (*shape[:-1], 7)
    assert torch.equal(got, make(7).apply(sums.double(), sums.dim() - 1))


def test_adds_a_residual() -> None:
    x, weight = torch.tensor([[1, 2]], dtype=torch.uint8), torch.tensor([[3, 4]], dtype=torch.int8)
    epilogue = Epilogue(
        x_scale=1.0,
        weight_scale=torch.ones(1),
        bias=None,
        y_scale=1.0,
        y_zero_point=0,
        quant_min=-128,
        quant_max=127,
        dtype=torch.int8,
        residual_scale=2.0,
        residual_zero_point=5,
    )

    got = linear_reference(x, 0, weight, torch.zeros(1), epilogue, torch.tensor([[8]], dtype=torch.uint8))

    assert got.tolist() == [[11 + 2 * 3]]
