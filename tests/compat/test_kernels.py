"""Operators of fake quantization under torch's names, with its errors."""

from __future__ import annotations

import pytest
import torch

from fxquant.compat import kernels


def test_channels_are_rounded_as_torch_does_it():
    x, scale, zero_point = torch.randn(4, 3), torch.tensor([0.1, 0.2, 0.3]), torch.tensor([1, 2, 3], dtype=torch.int32)
    arguments = (x, scale, zero_point, 1, 0, 15)
    assert torch.equal(
        kernels.fake_quantize_per_channel_affine(*arguments), torch.fake_quantize_per_channel_affine(*arguments)
    )
    with pytest.raises(RuntimeError, match="Scale must be Float"):
        kernels.fake_quantize_per_channel_affine(x, scale.double(), zero_point, 1, 0, 15)
    with pytest.raises(RuntimeError, match="`zero_point` must be between"):
        kernels.fake_quantize_per_channel_affine(x, scale, zero_point + 20, 1, 0, 15)


@pytest.mark.parametrize("name", ["fake_quantize_per_tensor_affine", "fused_moving_avg_obs_fake_quant"])
def test_names_exist(name):
    assert callable(getattr(kernels, name))
