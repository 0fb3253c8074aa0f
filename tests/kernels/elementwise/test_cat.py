"""``fxquant::cat``."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fxquant.kernels.elementwise.cat import cat, reference


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dim", [0, 1, 2, 3, -1, -3])
def test_native_is_reference(device, stored, assert_same, dtype: torch.dtype, channels_last: bool, dim: int) -> None:
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    parts = [stored(2, 19, 5, 7, dtype=dtype, channels_last=channels_last) for _ in range(3)]
    for limits in ((low, high), (low + 9, high - 9)):
        arguments = (parts, [0.1, 0.2, 0.3], [1, 2, 3], dim, 0.2, 2, *limits)
        assert_same(cat(*arguments), reference(*arguments))


@pytest.mark.parametrize("channels", [(1, 1), (128, 192, 96, 64), (0, 3), (3, 0, 5), (64,)])
def test_channels(device, stored, assert_same, channels: tuple[int, ...]) -> None:
    for channels_last in (False, True):
        parts = [stored(2, c, 13, 29, channels_last=channels_last) for c in channels]
        arguments = (parts, [0.1] * len(parts), [3] * len(parts), 1, 0.1, 3, 0, 255)
        assert_same(cat(*arguments), reference(*arguments))
        assert torch.equal(cat(*arguments), torch.cat(parts, 1))


@pytest.mark.parametrize(
    "views",
    [
        pytest.param(lambda q: [q, q.contiguous()], id="channels_last and contiguous"),
        pytest.param(lambda q: [q[:, ::2], q[:, 1::2]], id="every second channel"),
        pytest.param(lambda q: [q[:, :3], q[:, 3:]], id="ranges of channels"),
        pytest.param(lambda q: [q[:, :, 1:], q.flip(2)[:, :, 1:]], id="ranges of rows"),
        pytest.param(lambda q: [q.transpose(2, 3), q.transpose(2, 3)], id="transposed"),
        pytest.param(lambda q: [q[:, :1].expand(-1, 4, -1, -1), q], id="expanded"),
    ],
)
def test_views_that_are_not_dense(device, stored, assert_same, views) -> None:
    parts = views(stored(2, 8, 6, 5, channels_last=True))
    arguments = (parts, [0.1, 0.2], [3, 4], 1, 0.1, 3, 0, 255)
    assert_same(cat(*arguments), reference(*arguments))


def test_dimensions_other_than_four(device, stored, assert_same) -> None:
    for shape, dim in (((7,), 0), ((4, 7), -1), ((4, 7, 3), 1), ((2, 3, 2, 3, 2), 2)):
        arguments = ([stored(*shape), stored(*shape)], [0.1, 0.2], [3, 4], dim, 0.15, 3, 0, 255)
        assert_same(cat(*arguments), reference(*arguments))


def test_empty_inputs(isa, stored, assert_same) -> None:
    nothing = torch.empty(0, dtype=torch.uint8)
    q = stored(2, 3, 4, 4)
    for parts in ([nothing, q], [q, nothing], [nothing, nothing], [q[:0], q[:0]]):
        arguments = (parts, [0.1, 0.2], [3, 4], 0, 0.15, 3, 0, 255)
        assert_same(cat(*arguments), reference(*arguments))


def test_several_tasks_cut_rows(device, stored, assert_same) -> None:
    parts = [stored(2, c, 61, 59, channels_last=True) for c in (5, 17, 3)]
    arguments = (parts, [0.1, 0.2, 0.1], [3, 4, 3], 1, 0.1, 3, 0, 255)
    assert_same(cat(*arguments), reference(*arguments))


def test_equal_grids_copy_and_the_formula_agrees(isa) -> None:
    """For every byte and a range of awkward scales: requantizing onto the same grid is the identity."""
    q = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    for scale in [1.0 / 3, 0.1, 1e-6, 123.456, *torch.logspace(-8, 8, 50).tolist()]:
        for zero_point in (0, 77, 255):
            arguments = ([q], [scale], [zero_point], 0, scale, zero_point, 0, 255)
            assert torch.equal(cat(*arguments), q)
            assert torch.equal(reference(*arguments), q)


def test_limits_hold_for_copied_inputs_too(isa) -> None:
    q = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    assert torch.equal(cat([q], [0.1], [3], 0, 0.1, 3, 10, 200), q.clamp(10, 200))


def test_result_is_a_new_tensor(stored) -> None:
    q = stored(4, 4)
    assert cat([q], [0.1], [3], 0, 0.1, 3, 0, 255).data_ptr() != q.data_ptr()


def test_within_one_step_of_the_frameworks_own_operator(isa, stored, framework_tensor) -> None:
    a, b = stored(2, 16, 8, 8), stored(2, 8, 8, 8)
    theirs = torch.ops.quantized.cat([framework_tensor(a, 0.1, 3), framework_tensor(b, 0.07, 5)], 1, 0.2, 7).int_repr()
    assert (cat([a, b], [0.1, 0.07], [3, 5], 1, 0.2, 7, 0, 255).int() - theirs.int()).abs().max() <= 1


def byte(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("changes", "what", "got", "expected"),
    [
        (
            {"tensors": []},
            "tensors, scales and zero_points do not go together",
            "0, 2 and 2 of them",
            "as many of each, and at least one",
        ),
        (
            {"scales": [0.1]},
            "tensors, scales and zero_points do not go together",
            "2, 1 and 2 of them",
            "as many of each, and at least one",
        ),
        ({"tensors": [byte(2), torch.zeros(2)]}, "tensors[1] has the wrong dtype", "torch.float32", "uint8 or int8"),
        (
            {"tensors": [byte(2), byte(2).to(torch.int8)]},
            "tensors[1] has the wrong dtype",
            "torch.int8",
            "uint8",
        ),
        ({"scales": [0.1, -0.5]}, "tensors[1] scale is unusable", "-0.5", "a positive, normal float32"),
        ({"zero_points": [0, 256]}, "tensors[1] zero_point is out of range", "256", "0 to 255"),
        ({"dim": 1}, "axis is out of range", "1", "a dimension of the tensor, which has 1"),
        (
            {"tensors": [byte(2, 3, 4), byte(2, 3, 5)]},
            "the shapes of the tensors do not go together",
            "[2, 3, 4] and [2, 3, 5]",
            "equal sizes in every dimension but 0",
        ),
        (
            {"tensors": [byte(2, 3), byte(2, 3, 5)]},
            "the shapes of the tensors do not go together",
            "[2, 3] and [2, 3, 5]",
            "equal sizes in every dimension but 0",
        ),
    ],
)
def test_errors(changes: dict[str, object], what: str, got: str, expected: str) -> None:
    arguments = {
        "tensors": [byte(2), byte(2)], "scales": [0.1, 0.1], "zero_points": [0, 0], "dim": 0,
        "scale": 0.1, "zero_point": 0, "quant_min": 0, "quant_max": 255,
    } | changes  # fmt: skip
    for run in (cat, reference):
        with pytest.raises(RuntimeError) as error:
            run(**arguments)
        assert str(error.value) == f"fxquant::cat: {what}\n  got:      {got}\n  expected: {expected}"


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_opcheck(stored, channels_last: bool, dim: int) -> None:
    parts = [stored(2, 5, 4, 4, channels_last=channels_last) for _ in range(2)]
    torch.library.opcheck(torch.ops.fxquant.cat.default, (parts, [0.1, 0.2], [3, 4], dim, 0.1, 3, 0, 255))
