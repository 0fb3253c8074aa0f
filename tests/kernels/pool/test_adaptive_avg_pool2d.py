"""``fxquant::adaptive_avg_pool2d``."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fxquant.kernels.pool.adaptive_avg_pool2d import adaptive_avg_pool2d, reference

TIE = 1e-3
"""In steps: float32 rounds four times on the way, by less than 1e-4 each. Further from a tie, nothing may differ."""
SIZES = [[1, 1], [3, 4], [9, 11], [20, 5], [6], [0, 2]]
VIEWS = (
    lambda q: q,  # dense
    lambda q: q[0],  # C-H-W
    lambda q: q[:0],  # empty batch
    lambda q: q[:, :1],  # one channel
    lambda q: q[:, :, :, 1:],  # columns left out
)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_native_is_reference(device, stored, assert_same, dtype, channels_last, size) -> None:
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    x = stored(2, 37, 9, 11, dtype=dtype, channels_last=channels_last)
    for view in VIEWS:
        arguments = (view(x), size, 0.1, 3, 0.05, 4, low, high)
        assert_same(adaptive_avg_pool2d(*arguments), reference(*arguments))


@pytest.mark.parametrize("shape", [(1, 2048, 7, 7), (3, 1280, 7, 7), (1, 16, 56, 56), (2, 1, 30, 30), (1, 3, 1, 1)])
def test_global_pools(device, stored, assert_same, shape: tuple[int, ...]) -> None:
    for channels_last in (False, True):
        arguments = (stored(*shape, channels_last=channels_last), [1, 1], 0.1, 3, 0.02, 4, 0, 255)
        assert_same(adaptive_avg_pool2d(*arguments), reference(*arguments))


@pytest.mark.parametrize("size", [[1, 1], [3, 4], [7, 7], [5, 13]])
def test_against_float64(isa, stored, size: list[int]) -> None:
    x = stored(2, 5, 9, 11)
    scale, y_scale = (torch.tensor(value, dtype=torch.float32).double() for value in (0.1, 0.03))
    steps = F.adaptive_avg_pool2d((x.double() - 90) * scale, size) / y_scale + 100
    expected = steps.round().clamp(0, 255)
    actual = adaptive_avg_pool2d(x, size, 0.1, 90, 0.03, 100, 0, 255).double()
    far_from_tie = ((steps - steps.floor()) - 0.5).abs() > TIE
    assert torch.equal(actual[far_from_tie], expected[far_from_tie])
    assert (actual - expected).abs().max() <= 1


def test_sum_beyond_32_bits(isa) -> None:
    """8.6 million bytes of 255 sum to more than an int32 holds."""
    x = torch.full((1, 1, 2930, 2930), 255, dtype=torch.uint8)
    assert adaptive_avg_pool2d(x, [1, 1], 1.0, 0, 1.0, 0, 0, 255).item() == 255


def test_within_one_step_of_the_frameworks_own_operator(isa, stored, framework_tensor) -> None:
    x = stored(2, 64, 7, 7, channels_last=True)
    theirs = torch._C._nn.adaptive_avg_pool2d(framework_tensor(x, 0.1, 3), [1, 1]).int_repr()
    ours = adaptive_avg_pool2d(x, [1, 1], 0.1, 3, 0.1, 3, 0, 255)
    assert (ours.int() - theirs.int()).abs().max() <= 1


@pytest.mark.parametrize(
    ("changes", "what", "got", "expected"),
    [
        ({"x": torch.zeros(1, 4, 4)}, "x has the wrong dtype", "torch.float32", "uint8 or int8"),
        (
            {"x": torch.zeros(4, 4, dtype=torch.uint8)},
            "x has the wrong shape",
            "[4, 4]",
            "[N, C, H, W] or [C, H, W], of which only N may be 0",
        ),
        ({"output_size": [1, 1, 1]}, "output_size has the wrong length", "[1, 1, 1]", "one number or two"),
        ({"output_size": [1, -1]}, "output_size is too small", "[1, -1]", "at least 0"),
        ({"output_size": [2**31]}, "output_size is too large", f"[{2**31}, {2**31}]", "at most 2147483647"),
        ({"scale": -1.0}, "scale is unusable", "-1", "a positive, normal float32"),
    ],
)
def test_errors(changes: dict[str, object], what: str, got: str, expected: str) -> None:
    arguments = {
        "x": torch.zeros(1, 1, 4, 4, dtype=torch.uint8), "output_size": [1, 1], "x_scale": 0.1, "x_zero_point": 0,
        "scale": 0.1, "zero_point": 0, "quant_min": 0, "quant_max": 255,
    } | changes  # fmt: skip
    for run in (adaptive_avg_pool2d, reference):
        with pytest.raises(RuntimeError) as error:
            run(**arguments)
        assert str(error.value) == f"fxquant::adaptive_avg_pool2d: {what}\n  got:      {got}\n  expected: {expected}"


@pytest.mark.parametrize("channels_last", [False, True])
def test_opcheck(stored, channels_last: bool) -> None:
    x: Tensor = stored(2, 5, 8, 8, channels_last=channels_last)
    for size in ([1, 1], [3, 5]):
        arguments = (x, size, 0.1, 3, 0.1, 3, 0, 255)
        torch.library.opcheck(torch.ops.fxquant.adaptive_avg_pool2d.default, arguments)
