"""The factor of a batch norm against its formula, and its shape against the layer's own arithmetic."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fxquant.nn.folding import along_outputs, batch_norm_factor


def test_factor_is_gamma_over_the_standard_deviation():
    gamma, variance = torch.tensor([2.0, -3.0]), torch.tensor([4.0, 9.0])
    assert torch.allclose(batch_norm_factor(gamma, variance, 0.0), torch.tensor([1.0, -1.0], dtype=torch.float64))
    assert torch.allclose(batch_norm_factor(None, variance, 0.0), torch.tensor([0.5, 1 / 3], dtype=torch.float64))


@pytest.mark.parametrize("groups", [1, 2])
def test_factor_lies_along_the_outputs_of_a_transposed_convolution(groups):
    layer = nn.ConvTranspose2d(4, 6, 3, groups=groups, bias=False)
    factor = torch.rand(6) + 0.5
    x = torch.randn(2, 4, 5, 5)
    expected = layer(x) * factor.reshape(1, -1, 1, 1)
    with torch.no_grad():
        layer.weight *= along_outputs(factor, layer, 1)
    assert torch.allclose(layer(x), expected, atol=1e-5)  # sums in another order
