"""The epilogue, step by step against numpy float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fxquant.kernels.epilogue import Epilogue

F32 = np.float32


def make(**changes: object) -> Epilogue:
    values: dict = {
        "x_scale": 0.1,
        "weight_scale": torch.tensor([0.01, 0.02, 0.003]),
        "bias": torch.tensor([0.5, -0.25, 3.0]),
        "y_scale": 0.07,
        "y_zero_point": 17,
        "quant_min": 0,
        "quant_max": 255,
        "dtype": torch.uint8,
    }
    return Epilogue(**{**values, **changes})


def by_numpy(sums: np.ndarray, e: Epilogue, residual: np.ndarray | None = None) -> np.ndarray:
    """The words of the docstring, one rounded float32 operation a line. ``sums`` is [rows, channels]."""
    scale = F32(e.x_scale) * e.weight_scale.numpy()
    r = sums.astype(F32) * scale
    if e.bias is not None:
        r = r + e.bias.numpy()
    if residual is not None:
        r = r + (residual.astype(np.int32) - e.residual_zero_point).astype(F32) * F32(e.residual_scale)
    steps = np.rint(r * (F32(1) / F32(e.y_scale))) + F32(e.y_zero_point)
    return np.clip(steps, e.quant_min, e.quant_max).astype(np.int64)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("with_residual", [True, False])
def test_each_step_is_rounded_to_float32(bias: bool, with_residual: bool) -> None:
    rng = np.random.default_rng(0)
    sums = rng.integers(-40_000, 60_000, size=(2000, 3))
    e = make(residual_scale=0.11, residual_zero_point=9, **({} if bias else {"bias": None}))
    residual = rng.integers(0, 256, size=(2000, 3)) if with_residual else None
    given = torch.from_numpy(residual).to(torch.uint8) if residual is not None else None

    got = e.apply(torch.from_numpy(sums).double(), 1, given)

    assert got.dtype == torch.uint8
    np.testing.assert_array_equal(got.numpy(), by_numpy(sums, e, residual))


def test_sums_beyond_float32_are_rounded_to_nearest_even() -> None:
    sums = np.array([[2**24 + 1, -(2**24) - 3, 2**30 + 33]])
    e = make(bias=None, y_scale=70_000.0)

    got = e.apply(torch.from_numpy(sums).double(), 1)

    np.testing.assert_array_equal(got.numpy(), by_numpy(sums, e))


def test_channels_may_lie_along_any_dimension() -> None:
    sums = torch.arange(-24.0, 24.0).reshape(2, 3, 2, 4) * 100
    e = make()

    got = e.apply(sums, 1)

    last = e.apply(sums.movedim(1, -1).contiguous(), 3)
    assert torch.equal(got, last.movedim(-1, 1))


def test_one_weight_scale_serves_all_channels() -> None:
    sums = torch.arange(-9.0, 9.0).reshape(6, 3) * 1000
    one = make(weight_scale=torch.tensor([0.01]))
    three = make(weight_scale=torch.full((3,), 0.01))

    assert torch.equal(one.apply(sums, 1), three.apply(sums, 1))


def test_ties_go_to_even_before_the_zero_point_is_added() -> None:
    e = make(x_scale=1.0, weight_scale=torch.ones(1), bias=None, y_scale=2.0, y_zero_point=3)

    got = e.apply(torch.tensor([[1.0], [3.0], [5.0], [-1.0], [-3.0]]), 1)

    assert got.flatten().tolist() == [3 + 0, 3 + 2, 3 + 2, 3 + 0, 3 - 2]


def test_saturates_and_maps_nan_to_the_lower_limit() -> None:
    e = make(weight_scale=torch.tensor([1e38, 1e38, float("nan")]), quant_min=-7, quant_max=90, dtype=torch.int8)

    got = e.apply(torch.tensor([[10_000.0, -10_000.0, 1.0]]), 1)

    assert got.tolist() == [[90, -7, -7]]
