"""What convolutions are called with: every order of checks, on the Python side and the native one alike."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fxquant.errors import KernelError
from fxquant.kernels.conv.conv import Conv2dCall, Conv3dCall
from fxquant.kernels.conv.packing import PackedLayout

LARGEST = 2**63 - 1
CALLS = {2: Conv2dCall, 3: Conv3dCall}


def arguments(spatial: int, channels: int = 2, groups: int = 1, depth: int = 4, **changes: Any) -> dict[str, Any]:
    ones = [1] * spatial
    packed = PackedLayout.of(channels, depth, ones, 1 if groups < 1 or channels % groups or depth % groups else groups)
    return {
        "x": torch.zeros((1, depth, *[3] * spatial), dtype=torch.uint8), "x_zero_point": 0,
        "weight": torch.zeros(packed.shape, dtype=torch.int8),
        "zero_point_correction": torch.zeros(channels, dtype=torch.int32),
        "scale": torch.ones(channels), "bias": torch.zeros(channels), "kernel_size": ones, "stride": ones,
        "padding": [0] * 2 * spatial, "dilation": ones, "groups": groups, "residual": None, "residual_scale": 1.0,
        "residual_zero_point": 0, "y_scale": 1.0, "y_zero_point": 0, "quant_min": 0, "quant_max": 255,
        "dtype": torch.uint8,
    } | changes  # fmt: skip


def outcome(run: Any, given: dict[str, Any]) -> Any:
    """The result's shape, dtype and strides, or the words of the error."""
    try:
        y = run(**given)
    except RuntimeError as error:
        return str(error)
    return y.shape, y.dtype, y.stride()


CHANGES = [
    {"channels": 0, "groups": 2},
    {"channels": 0, "groups": 1},
    {"channels": 0, "groups": 2, "depth": 0},
    {"channels": 0, "groups": LARGEST, "depth": 0},
    {"channels": 4, "groups": 2, "depth": 0},
    {"channels": 1, "groups": LARGEST},
    {"groups": -(2**63)},
    {"kernel_size": LARGEST},
    {"stride": LARGEST},
    {"stride": 2**31 - 1},
    {"padding": LARGEST},
    {"padding": 2**31 - 1},
    {"dilation": LARGEST},
    {"x_zero_point": LARGEST},
    {"y_zero_point": LARGEST},
    {"quant_min": -(2**63), "quant_max": LARGEST},
    {"scale": torch.ones(0)},
    {"scale": torch.ones(0), "groups": 2},
    {"scale": torch.ones(())},
    {"zero_point_correction": torch.zeros(0, dtype=torch.int32)},
    {"weight": torch.zeros(0, dtype=torch.int8)},
]
LISTS = {"kernel_size": 1, "stride": 1, "padding": 2, "dilation": 1}


@pytest.mark.parametrize("spatial", [2, 3])
@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_hostile_numbers_get_the_same_words_from_kernel_and_reference(spatial: int, changes: dict[str, Any]) -> None:
    wide = {name: [value] * LISTS[name] * spatial if name in LISTS else value for name, value in changes.items()}
    given = arguments(spatial, **wide)
    native = outcome(getattr(torch.ops.fxquant, f"conv{spatial}d").default, given)

    assert native == outcome(lambda **kwargs: CALLS[spatial](**kwargs).reference(), given)
    assert native == outcome(lambda **kwargs: CALLS[spatial](**kwargs).empty_result(), given)


def test_no_result_channels_give_an_empty_result() -> None:
    call = Conv2dCall(**arguments(2, channels=0, groups=2))

    assert call.reference().shape == (1, 0, 3, 3)


def test_errors_name_the_operator() -> None:
    with pytest.raises(KernelError, match=r"fxquant::conv3d: groups is out of range"):
        Conv3dCall(**arguments(3, groups=3)).empty_result()
