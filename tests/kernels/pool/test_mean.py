"""``fxquant::mean``."""

from __future__ import annotations

import pytest
import torch

from fxquant.kernels.pool.mean import mean, reference

TIE = 1e-3
"""In steps: float32 rounds four times on the way, by less than 1e-4 each. Further from a tie, nothing may differ."""
DIMS = [[2, 3], [-1, -2], [1], [0], [], [0, 2], [1, 3], [3], [0, 1, 2], [0, 1, 2, 3]]
VIEWS = (
    lambda q: q,  # dense
    lambda q: q[:0],  # empty batch
    lambda q: q[:, :, :0],  # no rows
    lambda q: q[:, :1],  # one channel
    lambda q: q[:1, :, :1, :1],  # one pixel
    lambda q: q[:, :, ::2],  # every second row
    lambda q: q.permute(1, 3, 0, 2),  # permuted
    lambda q: q[:, :, :1].expand(-1, -1, 4, -1),  # expanded
)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dim", DIMS)
def test_native_is_reference(device, stored, assert_same, dtype, channels_last, dim) -> None:
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    x = stored(2, 37, 5, 6, dtype=dtype, channels_last=channels_last)
    for view in VIEWS:
        for keepdim in (False, True):
            arguments = (view(x), dim, keepdim, 0.1, 3, 0.05, 4, low, high)
            assert_same(mean(*arguments), reference(*arguments))


@pytest.mark.parametrize(
    ("shape", "dim"),
    [((), []), ((), [0]), ((7,), [0]), ((3, 197, 64), [1]), ((2, 3, 2, 3, 2), [1, 3]), ((9, 70000), [1])],
)
def test_dimensions_other_than_four(device, stored, assert_same, shape: tuple[int, ...], dim: list[int]) -> None:
    for keepdim in (False, True):
        arguments = (stored(*shape), dim, keepdim, 0.1, 3, 0.02, 4, 0, 255)
        assert_same(mean(*arguments), reference(*arguments))


@pytest.mark.parametrize("dim", [[2, 3], [1], [0, 3]])
def test_against_float64(isa, stored, dim: list[int]) -> None:
    x = stored(4, 5, 9, 11)
    scale, y_scale = (torch.tensor(value, dtype=torch.float32).double() for value in (0.1, 0.03))
    steps = ((x.double() - 90) * scale).mean(dim) / y_scale + 100
    expected = steps.round().clamp(0, 255)
    actual = mean(x, dim, False, 0.1, 90, 0.03, 100, 0, 255).double()
    far_from_tie = ((steps - steps.floor()) - 0.5).abs() > TIE
    assert torch.equal(actual[far_from_tie], expected[far_from_tie])
    assert (actual - expected).abs().max() <= 1


def test_sum_beyond_32_bits(isa) -> None:
    """8.6 million bytes of 255 sum to more than an int32 holds, in a row and in columns."""
    x = torch.full((8_600_000, 1), 255, dtype=torch.uint8)
    assert mean(x, [0, 1], False, 1.0, 0, 1.0, 0, 0, 255).item() == 255
    assert mean(x.expand(-1, 2), [0], False, 1.0, 0, 1.0, 0, 0, 255).tolist() == [255, 255]


def test_mean_of_nothing_is_the_lower_limit(isa) -> None:
    x = torch.empty(3, 0, dtype=torch.uint8)
    assert mean(x, [1], False, 0.1, 3, 0.1, 3, 5, 255).tolist() == [5, 5, 5]


def test_within_one_step_of_the_frameworks_own_operator(isa, stored, framework_tensor) -> None:
    x = stored(2, 64, 7, 7, channels_last=True)
    theirs = framework_tensor(x, 0.1, 3).mean([2, 3]).int_repr()
    assert (mean(x, [2, 3], False, 0.1, 3, 0.1, 3, 0, 255).int() - theirs.int()).abs().max() <= 1


@pytest.mark.parametrize(
    ("changes", "what", "got", "expected"),
    [
        ({"x": torch.zeros(4, 4)}, "x has the wrong dtype", "torch.float32", "uint8 or int8"),
        ({"dim": [2]}, "axis is out of range", "2", "a dimension of the tensor, which has 2"),
        ({"dim": [1, -1]}, "dim names a dimension twice", "[1, -1]", "each at most once"),
        ({"zero_point": -1}, "zero_point is out of range", "-1", "0 to 255"),
    ],
)
def test_errors(changes: dict[str, object], what: str, got: str, expected: str) -> None:
    arguments = {
        "x": torch.zeros(4, 4, dtype=torch.uint8), "dim": [1], "keepdim": False, "x_scale": 0.1, "x_zero_point": 0,
        "scale": 0.1, "zero_point": 0, "quant_min": 0, "quant_max": 255,
    } | changes  # fmt: skip
    for run in (mean, reference):
        with pytest.raises(RuntimeError) as error:
            run(**arguments)
        assert str(error.value) == f"fxquant::mean: {what}\n  got:      {got}\n  expected: {expected}"


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("keepdim", [False, True])
def test_opcheck(stored, channels_last: bool, keepdim: bool) -> None:
    x = stored(2, 5, 8, 8, channels_last=channels_last)
    for dim in ([2, 3], [1], []):
        torch.library.opcheck(torch.ops.fxquant.mean.default, (x, dim, keepdim, 0.1, 3, 0.1, 3, 0, 255))
