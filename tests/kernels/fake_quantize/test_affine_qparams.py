"""From a range to scale and zero point, by hand."""

from __future__ import annotations

import pytest
import torch

from fxquant.kernels.fake_quantize.affine_qparams import affine_qparams, step_width


@pytest.mark.parametrize(
    ("low", "high", "middle", "scale", "zero_point"),
    [
        (-1.0, 1.55, None, 0.01, 100),
        (0.5, 2.55, None, 0.01, 0),  # widened to hold 0
        (-2.0, 1.0, 128, 2.0 / 127.5, 128),
        (0.0, 0.0, None, 1e-7, 0),
    ],
)
def test_by_hand(low: float, high: float, middle: int | None, scale: float, zero_point: int) -> None:
    got = affine_qparams(torch.tensor([low]), torch.tensor([high]), 0, 255, middle, 1e-7)
    assert got[0].item() == pytest.approx(scale)
    assert got[1].tolist() == [zero_point]
    assert got[0].dtype == torch.float32
    assert got[1].dtype == torch.int32


def test_a_width_beyond_the_largest_float() -> None:
    assert step_width(torch.tensor(-3e38), torch.tensor(3e38), 255.0).item() == pytest.approx(6e38 / 255)
