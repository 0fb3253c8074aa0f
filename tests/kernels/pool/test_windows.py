"""Windows of pools against brute force, layouts against torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.pool.windows import (
    adaptive_windows,
    is_channels_last,
    memory_format,
    pair,
    pooling_size,
    pooling_windows,
    window_sums,
)

AXES = st.tuples(st.integers(1, 5), st.integers(1, 4), st.booleans(), st.integers(0, 8)).flatmap(
    lambda drawn: st.tuples(
        st.just(drawn[0]), st.just(drawn[1]), st.integers(0, drawn[0] // 2), st.just(drawn[2]), st.just(drawn[3])
    )
)
"""Kernel, stride, padding, ceil_mode, and how much longer than the kernel the axis is."""


@settings(deadline=None)
@given(AXES)
def test_pooling_windows_are_those_of_torch(axis: tuple[int, int, int, bool, int]) -> None:
    """The average of a one among zeros is 1 / divisor in the windows that hold it, and 0 in the others."""
    kernel, stride, padding, ceil_mode, more = axis
    size = max(1, kernel - 2 * padding) + more
    windows = pooling_windows(size, kernel, stride, padding, ceil_mode)
    identity = torch.eye(size, dtype=torch.float64)[:, None]
    counted = F.avg_pool1d(identity, kernel, stride, padding, ceil_mode, count_include_pad=True)[:, 0]
    left_out = F.avg_pool1d(identity, kernel, stride, padding, ceil_mode, count_include_pad=False)[:, 0]
    elements = torch.arange(size)[:, None]
    inside = ((elements >= windows.start) & (elements < windows.end)).double()
    assert counted.shape[1] == pooling_size(size, kernel, stride, padding, 1, ceil_mode)
    assert torch.allclose(inside / windows.extent, counted, rtol=0, atol=1e-12)
    assert torch.allclose(inside / (windows.end - windows.start), left_out, rtol=0, atol=1e-12)


@settings(deadline=None)
@given(st.integers(1, 30), st.integers(1, 30))
def test_adaptive_windows_are_those_of_torch(size: int, outputs: int) -> None:
    windows = adaptive_windows(size, outputs)
    elements = torch.arange(size)[:, None]
    inside = ((elements >= windows.start) & (elements < windows.end)).double()
    expected = F.adaptive_avg_pool1d(torch.eye(size, dtype=torch.float64)[:, None], outputs)[:, 0]
    assert torch.allclose(inside / windows.extent, expected, rtol=0, atol=1e-12)


def test_window_sums_are_exact() -> None:
    q = torch.randint(-128, 128, (2, 3, 9, 7), dtype=torch.int32)
    rows, columns = pooling_windows(9, 3, 2, 1, True), adaptive_windows(7, 4)
    sums = window_sums(q, rows, columns)
    assert sums.dtype == torch.int64
    for i in range(len(rows.start)):
        for j in range(len(columns.start)):
            window = q[..., rows.start[i] : rows.end[i], columns.start[j] : columns.end[j]]
            assert torch.equal(sums[..., i, j], window.sum((-2, -1)))


def test_pair() -> None:
    assert pair("fxquant::op", "stride", [2]) == (2, 2)
    assert pair("fxquant::op", "stride", [2, 3]) == (2, 3)
    with pytest.raises(KernelError, match="fxquant::op: stride has the wrong length"):
        pair("fxquant::op", "stride", [1, 2, 3])


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 1, 4, 5), (2, 3, 1, 1), (1, 1, 1, 1), (2, 3, 1, 5), (0, 3, 4, 5)])
@pytest.mark.parametrize(
    "view",
    [
        lambda x: x,
        lambda x: x.contiguous(memory_format=torch.channels_last),
        lambda x: x.contiguous(memory_format=torch.channels_last)[:, :, ::2],
        lambda x: x.contiguous(memory_format=torch.channels_last)[:, :1],
        lambda x: x.transpose(2, 3),
        lambda x: x[:, :, :1].expand(-1, -1, 4, -1),
        lambda x: x[:, :1].expand(-1, 4, -1, -1),
    ],
)
def test_is_channels_last_as_torch_decides(shape: tuple[int, ...], view) -> None:
    """torch's pools suggest a memory format in the same way: they show it in their result."""
    x: Tensor = view(torch.zeros(shape))
    theirs = F.max_pool2d(x, 1)
    assert theirs.stride() == torch.empty(x.shape, memory_format=memory_format(x)).stride()
    assert is_channels_last(x) == (memory_format(x) == torch.channels_last)
