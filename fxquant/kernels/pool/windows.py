"""Which rows (or columns) of the input each output of a pooling reads, along one axis; sizes as torch has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fxquant.errors import KernelError

LARGEST = 2**31 - 1
"""Of a size, stride, padding or dilation."""


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of one axis. Each field is an int64 [outputs]."""

    start: Tensor
    """First real element."""
    end: Tensor
    """One after the last real element; ``end - start`` real elements are read."""
    extent: Tensor
    """Elements counted when padding is: up to the padded edge, never beyond (``ceil_mode``)."""


def pooling_windows(size: int, kernel: int, stride: int, padding: int, ceil_mode: bool) -> Windows:
    """Windows of ``kernel`` elements, ``stride`` apart, over ``size`` elements with ``padding`` on both sides."""
    first = torch.arange(pooling_size(size, kernel, stride, padding, 1, ceil_mode)) * stride - padding
    last = (first + kernel).clamp(max=size + padding)
    return Windows(first.clamp(min=0), last.clamp(max=size), last - first)


def adaptive_windows(size: int, outputs: int) -> Windows:
    """Window ``i`` runs from ``floor(i * size / outputs)`` to ``ceil((i + 1) * size / outputs)``."""
    index = torch.arange(outputs)
    start = torch.div(index * size, outputs, rounding_mode="floor")
    end = torch.div((index + 1) * size + outputs - 1, outputs, rounding_mode="floor")
    return Windows(start, end, end - start)


def pooling_size(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> int:
    """Count the windows. With ``ceil_mode`` the last one may stick out, but must begin in the input or before it."""
    span = size + 2 * padding - dilation * (kernel - 1) - 1
    outputs = (span + (stride - 1 if ceil_mode else 0)) // stride + 1
    if ceil_mode and (outputs - 1) * stride >= size + padding:
        outputs -= 1
    return outputs


def window_sums(values: Tensor, *axes: Windows) -> Tensor:
    """Exact sums over the windows of the last axes, as differences of running sums.

    Args:
        values: integers [..., H, W], any dtype.
        axes: Windows along H, OH of them, and along W, OW of them; or along other numbers of last axes.

    Returns:
        int64 [..., OH, OW].
    """
    for dim, windows in enumerate(axes, start=-len(axes)):
        running = values.cumsum(dim, dtype=torch.int64)
        running = torch.cat([torch.zeros_like(running.narrow(dim, 0, 1)), running], dim)
        start, end = windows.start.to(values.device), windows.end.to(values.device)
        values = running.index_select(dim, end) - running.index_select(dim, start)
    return values


def window_products(rows: Tensor, columns: Tensor, device: torch.device) -> Tensor:
    """Return ``rows[i] * columns[j]`` as an int64 [OH, OW] on ``device``: element counts of two-dimensional windows."""
    return (rows[:, None] * columns[None, :]).to(device)


def pair(op: str, name: str, values: Sequence[int]) -> tuple[int, int]:
    """Return one value for each axis, rows first; one number stands for both."""
    if len(values) not in (1, 2):
        raise KernelError(f"{op}: {name} has the wrong length", got=list(values), expected="one number or two")
    return values[0], values[-1]


def check_pooling(
    op: str,
    x: Tensor,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    ceil_mode: bool,
) -> tuple[int, int]:
    """Refuse what torch refuses; the number of windows along both axes."""
    check_image(op, x)
    for name, values, least in (
        ("kernel_size", kernel, 1),
        ("stride", stride, 1),
        ("padding", padding, 0),
        ("dilation", dilation, 1),
    ):
        if min(values) < least:
            raise KernelError(f"{op}: {name} is too small", got=list(values), expected=f"at least {least}")
        check_largest(op, name, values)
    limits = [k // 2 for k in kernel]
    if padding[0] > limits[0] or padding[1] > limits[1]:
        raise KernelError(
            f"{op}: padding is too large", got=list(padding), expected=f"at most half of the kernel, {limits}"
        )
    height, width = (
        pooling_size(x.shape[axis], kernel[axis], stride[axis], padding[axis], dilation[axis], ceil_mode)
        for axis in (-2, -1)
    )
    if height < 1 or width < 1:
        raise KernelError(
            f"{op}: x is smaller than the kernel",
            got=f"x {list(x.shape)}, kernel_size {list(kernel)}",
            expected="at least one window",
        )
    return height, width


def check_largest(op: str, name: str, values: Sequence[int]) -> None:
    """Sizes of windows, and how many there are, are 32 bit numbers: sums of a few of them are exact in 64."""
    if max(values) > LARGEST:
        raise KernelError(f"{op}: {name} is too large", got=list(values), expected=f"at most {LARGEST}")


def check_image(op: str, x: Tensor) -> None:
    """[C, H, W] or [N, C, H, W], empty in N at most."""
    if x.dim() not in (3, 4) or min(x.shape[-3:]) == 0:
        raise KernelError(
            f"{op}: x has the wrong shape",
            got=list(x.shape),
            expected="[N, C, H, W] or [C, H, W], of which only N may be 0",
        )


def empty_output(x: Tensor, height: int, width: int) -> Tensor:
    """Return an output of a spatial size, in the memory format of ``x``; one of three dimensions is contiguous."""
    shape = [*x.shape[:-2], height, width]
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=memory_format(x))


def memory_format(x: Tensor) -> torch.memory_format:
    """channels_last if ``x`` has four dimensions and is stored so, as torch tells from the strides; else contiguous."""
    return torch.channels_last if x.dim() == 4 and is_channels_last(x) else torch.contiguous_format


def is_channels_last(x: Tensor) -> bool:
    """Tell whether the strides of ``x`` [N, C, H, W] fall in the order N, H, W, C; not if they are ambiguous."""
    smallest = 0
    if x.stride(1) == 0:
        return False
    for dim in (1, 3, 2, 0):
        size, stride = x.shape[dim], x.stride(dim)
        if size == 0 or stride < smallest or (dim == 0 and smallest == x.stride(1)):
            return False
        smallest = stride * size if size > 1 else stride
    return True
