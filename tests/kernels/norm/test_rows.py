"""What softmax and layer_norm have in common."""

from __future__ import annotations

import torch

from fxquant.kernels.norm.rows import power_of_two
from fxquant.kernels.norm.softmax import SoftmaxCall


def test_the_result_is_contiguous():
    x = torch.zeros(4, 3, 2).transpose(0, 2)
    y = SoftmaxCall(x, 1.0, False, 1.0, 0, -128, 127, torch.int8).empty_result()
    assert (y.shape, y.dtype, y.is_contiguous()) == (x.shape, torch.int8, True)


def test_powers_of_two_are_exact():
    exponents = torch.arange(-126, 128, dtype=torch.int32)
    assert power_of_two(exponents).tolist() == [2.0**k for k in exponents.tolist()]
