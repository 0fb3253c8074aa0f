"""``fxquant::max_pool2d``."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fxquant.kernels.pool.max_pool2d import max_pool2d, reference

GEOMETRIES = [
    pytest.param([3, 3], [2, 2], [1, 1], [1, 1], False, id="stem of a ResNet"),
    pytest.param([3, 3], [2, 2], [0, 0], [1, 1], True, id="stem of GoogLeNet"),
    pytest.param([3, 3], [1, 1], [1, 1], [1, 1], True, id="branch of GoogLeNet"),
    pytest.param([2, 2], [2, 2], [0, 0], [1, 1], False, id="VGG"),
    pytest.param([2, 3], [1, 2], [1, 0], [3, 2], True, id="uneven and dilated"),
    pytest.param([5, 5], [1, 1], [2, 2], [1, 1], False, id="SPP"),
    pytest.param([11, 10], [3, 4], [5, 5], [1, 1], False, id="more rows and columns than are read at once"),
    pytest.param([1], [3], [0], [1], False, id="one element"),
    pytest.param([3], [], [0], [1], True, id="one number for both axes"),
]
VIEWS = (
    lambda q: q,  # dense
    lambda q: q[0],  # C-H-W
    lambda q: q[:0],  # empty batch
    lambda q: q[:, :1],  # one channel
    lambda q: q[:, :, :, 1:],  # columns left out
    lambda q: q.transpose(2, 3),  # transposed
)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(("kernel", "stride", "padding", "dilation", "ceil_mode"), GEOMETRIES)
def test_native_is_reference(
    device, stored, assert_same, dtype, channels_last, kernel, stride, padding, dilation, ceil_mode
) -> None:
    x = stored(2, 37, 13, 14, dtype=dtype, channels_last=channels_last)
    for view in VIEWS:
        arguments = (view(x), kernel, stride, padding, dilation, ceil_mode)
        assert_same(max_pool2d(*arguments), reference(*arguments))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_geometry_is_that_of_torch(data: st.DataObject) -> None:
    kernel = [data.draw(st.integers(1, 4)) for _ in range(2)]
    dilation = [data.draw(st.integers(1, 3)) for _ in range(2)]
    stride = [data.draw(st.integers(1, 4)) for _ in range(2)]
    padding = [data.draw(st.integers(0, k // 2)) for k in kernel]
    least = [max(1, (k - 1) * d + 1 - 2 * p) for k, d, p in zip(kernel, dilation, padding, strict=True)]
    size = [data.draw(st.integers(n, n + 6)) for n in least]
    ceil_mode = data.draw(st.booleans())
    x = torch.randint(0, 256, (2, 3, *size), dtype=torch.uint8)
    if data.draw(st.booleans()):
        x = x.contiguous(memory_format=torch.channels_last)
    expected = F.max_pool2d(x.float(), kernel, stride, padding, dilation, ceil_mode)
    actual = max_pool2d(x, kernel, stride, padding, dilation, ceil_mode)
    assert torch.equal(actual.float(), expected.clamp(min=0))


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(("dtype", "lowest"), [(torch.uint8, 0), (torch.int8, -128)])
def test_window_without_a_real_element(isa, channels_last: bool, dtype: torch.dtype, lowest: int) -> None:
    x = torch.full((1, 2, 2, 2), 100, dtype=dtype)
    x = x.contiguous(memory_format=torch.channels_last) if channels_last else x
    y = max_pool2d(x, [2, 2], [1, 1], [1, 1], [3, 3], True)
    assert y.tolist() == [[[[lowest]], [[lowest]]]]


def test_channels_last_stays(isa, stored) -> None:
    y = max_pool2d(stored(2, 5, 8, 8, channels_last=True), [2], [2], [0], [1], False)
    assert y.is_contiguous(memory_format=torch.channels_last)


def test_equals_the_frameworks_own_operator(isa, stored, framework_tensor) -> None:
    x = stored(2, 64, 28, 28, channels_last=True)
    theirs = torch.max_pool2d(framework_tensor(x, 0.1, 3), 3, 2, 1)
    assert torch.equal(max_pool2d(x, [3, 3], [2, 2], [1, 1], [1, 1], False), theirs.int_repr())


def byte(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.uint8)


SHAPES = "[N, C, H, W] or [C, H, W], of which only N may be 0"


@pytest.mark.parametrize(
    ("changes", "what", "got", "expected"),
    [
        ({"x": torch.zeros(1, 4, 4)}, "x has the wrong dtype", "torch.float32", "uint8 or int8"),
        ({"x": byte(4, 4)}, "x has the wrong shape", "[4, 4]", SHAPES),
        ({"x": byte(2, 0, 4, 4)}, "x has the wrong shape", "[2, 0, 4, 4]", SHAPES),
        ({"x": byte(2, 3, 4, 0)}, "x has the wrong shape", "[2, 3, 4, 0]", SHAPES),
        ({"kernel_size": [2, 2, 2]}, "kernel_size has the wrong length", "[2, 2, 2]", "one number or two"),
        ({"kernel_size": []}, "kernel_size has the wrong length", "[]", "one number or two"),
        ({"kernel_size": [0, 1]}, "kernel_size is too small", "[0, 1]", "at least 1"),
        ({"stride": [1, 0]}, "stride is too small", "[1, 0]", "at least 1"),
        ({"dilation": [0]}, "dilation is too small", "[0, 0]", "at least 1"),
        ({"dilation": [1, 2**63 - 1]}, "dilation is too large", f"[1, {2**63 - 1}]", "at most 2147483647"),
        ({"padding": [-1]}, "padding is too small", "[-1, -1]", "at least 0"),
        ({"padding": [1, 2]}, "padding is too large", "[1, 2]", "at most half of the kernel, [1, 1]"),
        (
            {"kernel_size": [9, 9]},
            "x is smaller than the kernel",
            "x [1, 1, 4, 4], kernel_size [9, 9]",
            "at least one window",
        ),
    ],
)
def test_errors(changes: dict[str, object], what: str, got: str, expected: str) -> None:
    arguments = {
        "x": byte(1, 1, 4, 4), "kernel_size": [2, 2], "stride": [2, 2], "padding": [0, 0], "dilation": [1, 1],
        "ceil_mode": False,
    } | changes  # fmt: skip
    for run in (max_pool2d, reference):
        with pytest.raises(RuntimeError) as error:
            run(**arguments)
        assert str(error.value) == f"fxquant::max_pool2d: {what}\n  got:      {got}\n  expected: {expected}"


@pytest.mark.parametrize("channels_last", [False, True])
def test_opcheck(stored, channels_last: bool) -> None:
    x = stored(2, 5, 8, 8, channels_last=channels_last)
    for arguments in ((x, [3, 3], [2, 2], [1, 1], [1, 1], False), (x[0], [3, 2], [], [0, 1], [2, 2], True)):
        torch.library.opcheck(torch.ops.fxquant.max_pool2d.default, arguments)
