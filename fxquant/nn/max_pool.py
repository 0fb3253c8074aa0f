"""Max pools, and the largest value along a dimension: quantized values are chosen, on the input's qparams."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fxquant.kernels import max_pool2d
from fxquant.kernels.pool.max_pool2d import reference as max_pool2d_reference
from fxquant.kernels.pool.windows import adaptive_windows
from fxquant.nn.base import QuantizedModule
from fxquant.patterns.pattern import UnitView

Size = int | Sequence[int]


class QuantizedMaxPool2d(QuantizedModule):
    """Takes the largest value of each window, with the input's qparams: ``fxquant.kernels.pool.max_pool2d``.

    Args:
        kernel_size: As in ``torch.nn.MaxPool2d``, like the others.
        stride: None: ``kernel_size``.
        padding: On each side; never chosen.
        dilation: Distance of the elements of a window.
        ceil_mode: Whether the last window may stick out.

    Shape:
        uint8 or int8 [N, C, H, W] or [C, H, W] to [N, C, OH, OW] or [C, OH, OW].
    """

    def __init__(
        self,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        dilation: Size = 1,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__()
        self.arguments = (
            pair(kernel_size),
            pair(kernel_size if stride is None else stride),
            pair(padding),
            pair(dilation),
            ceil_mode,
        )

    @classmethod
    def from_unit(cls, unit: UnitView) -> QuantizedMaxPool2d:
        """Build the module of a unit, from its node ``pool``."""
        return cls(*unit.arguments("pool", kernel_size=None, stride=None, padding=0, dilation=1, ceil_mode=False))

    def forward(self, x: Tensor) -> Tensor:
        return max_pool2d(x, *self.arguments)

    def reference(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return max_pool2d_reference(x, *self.arguments)

    def extra_repr(self) -> str:
        kernel_size, stride, padding, dilation, ceil_mode = self.arguments
        return f"{kernel_size=}, {stride=}, {padding=}, {dilation=}, {ceil_mode=}"


def max_pool1d(
    x: Tensor, kernel_size: Size, stride: Size, padding: Size = 0, dilation: Size = 1, ceil_mode: bool = False
) -> Tensor:
    """Run ``F.max_pool1d`` of uint8 or int8 [N, C, L] or [C, L]: over images of one row."""
    kernel, stride_, pad, gap = (several(size, 1) for size in (kernel_size, stride, padding, dilation))
    return max_pool2d(x.unsqueeze(-2), [1, *kernel], [1, *stride_], [0, *pad], [1, *gap], ceil_mode).squeeze(-2)


def max_pool3d(
    x: Tensor, kernel_size: Size, stride: Size, padding: Size = 0, dilation: Size = 1, ceil_mode: bool = False
) -> Tensor:
    """Run ``F.max_pool3d`` of uint8 or int8 [N, C, D, H, W] or [C, D, H, W]: over the slices, then over their depth."""
    kernel, stride_, pad, gap = (several(size, 3) for size in (kernel_size, stride, padding, dilation))
    slices = max_pool2d(x.flatten(0, -4), kernel[1:], stride_[1:], pad[1:], gap[1:], ceil_mode)
    columns = slices.flatten(2).unsqueeze(1)
    deep = max_pool2d(columns, [kernel[0], 1], [stride_[0], 1], [pad[0], 0], [gap[0], 1], ceil_mode)
    return deep.reshape(*x.shape[:-3], deep.shape[-2], *slices.shape[-2:])


def adaptive_max_pool1d(x: Tensor, output_size: Size) -> Tensor:
    """Run ``F.adaptive_max_pool1d`` of uint8 or int8."""
    return _adaptive_max_pool(x, several(output_size, 1))


def adaptive_max_pool2d(x: Tensor, output_size: Size) -> Tensor:
    """Run ``F.adaptive_max_pool2d`` of uint8 or int8."""
    return _adaptive_max_pool(x, several(output_size, 2))


def adaptive_max_pool3d(x: Tensor, output_size: Size) -> Tensor:
    """Run ``F.adaptive_max_pool3d`` of uint8 or int8."""
    return _adaptive_max_pool(x, several(output_size, 3))


_POOLS = {1: max_pool1d, 2: max_pool2d, 3: max_pool3d}


def _adaptive_max_pool(x: Tensor, output_size: Sequence[int | None]) -> Tensor:
    """Blocks of one size are windows; else a maximum over a block is one over each of its axes in turn."""
    axes = len(output_size)
    sizes = [
        (size, size if outputs is None else outputs) for size, outputs in zip(x.shape[-axes:], output_size, strict=True)
    ]
    if all(outputs and size % outputs == 0 for size, outputs in sizes):
        blocks = [size // outputs for size, outputs in sizes]
        return _POOLS[axes](x, blocks, blocks, [0] * axes, [1] * axes, False)
    for axis, (size, outputs) in enumerate(sizes, start=-axes):
        windows = adaptive_windows(size, outputs)
        bounds = zip(windows.start.tolist(), windows.end.tolist(), strict=True)
        x = torch.stack([x.narrow(axis, start, end - start).amax(axis) for start, end in bounds], axis)
    return x


def several(size: Size, dimensions: int) -> list[int]:
    """Return one number for each dimension; one number stands for all."""
    return [size] * dimensions if isinstance(size, int) else [size[0]] * dimensions if len(size) == 1 else list(size)


class QuantizedMaxValues(QuantizedModule):
    """Takes the largest or smallest value along a dimension, with the input's qparams.

    Args:
        dim: The dimension.
        keepdim: Whether it stays, with size 1.
        largest: Else the smallest.

    Shape:
        uint8 or int8 of any shape to the shape without ``dim``, or with 1 there.
    """

    def __init__(self, dim: int, keepdim: bool, *, largest: bool) -> None:
        super().__init__()
        self.dim, self.keepdim, self.largest = dim, keepdim, largest

    @classmethod
    def from_unit(cls, unit: UnitView) -> QuantizedMaxValues:
        """Build the module of a unit, from its node ``pick``."""
        dim, keepdim = unit.arguments("pick", dim=None, keepdim=False)
        return cls(dim, keepdim, largest=unit.nodes["pick"].target in (torch.max, "max"))

    def forward(self, x: Tensor) -> Tensor:
        return (torch.amax if self.largest else torch.amin)(x, self.dim, self.keepdim)

    def reference(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return self.forward(x)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, keepdim={self.keepdim}, largest={self.largest}"


def pair(size: Size) -> tuple[int, int]:
    """Return one number for each of two axes."""
    rows, columns = several(size, 2)
    return rows, columns
