"""A transposed convolution as several plain ones: each computes the outputs that lie a stride apart."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fxquant.kernels.conv.reference import ConvGeometry
from fxquant.nn.weighted import unpacking

_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
"""Rank of a batch of images or volumes -> its memory format with channels innermost."""


@dataclass(frozen=True, slots=True)
class AxisPhase:
    """The outputs ``first``, ``first + stride``, ``first + 2 * stride``, … of one axis, as a plain convolution."""

    first: int
    taps: slice | None
    """Which elements of the mirrored kernel it multiplies. None: none ever meets an input."""
    dilation: int
    padding: int
    """On both sides: the larger one is given to both, and what is too much is skipped."""
    skipped: int
    """Its results before the first one that is wanted."""


@dataclass(frozen=True, slots=True)
class Axis:
    """The geometry of a transposed convolution along one axis, as ``torch.nn`` has it.

    Output ``o`` sums over the elements ``k`` of the kernel for which ``(o + padding - dilation * k) / stride`` is a
    whole number: the place of the input that they meet. For outputs a stride apart these are the same elements, and the
    places move on by one: a plain convolution of stride 1.
    """

    kernel_size: int
    stride: int
    padding: int
    output_padding: int
    dilation: int

    def output_size(self, size: int) -> int:
        """Outputs for ``size`` inputs."""
        return (size - 1) * self.stride + self._over

    @property
    def _over(self) -> int:
        return self.dilation * (self.kernel_size - 1) - 2 * self.padding + self.output_padding + 1

    def sub_convolutions(self) -> Iterator[AxisPhase]:
        """One for each output before the stride."""
        shared = math.gcd(self.stride, self.dilation)
        apart, step = self.stride // shared, self.dilation // shared  # elements of the kernel; places that they meet
        for first in range(self.stride):
            beyond = -(-(self._over - first) // self.stride) - 1  # outputs of the phase beyond the number of inputs
            offsets = (first + self.padding - self.dilation * k for k in range(min(apart, self.kernel_size)))
            meets = next((k for k, offset in enumerate(offsets) if offset % self.stride == 0), None)
            if meets is None:
                yield AxisPhase(first, None, 1, max(0, beyond), 0)
                continue
            count = len(range(meets, self.kernel_size, apart))
            last = (first + self.padding - self.dilation * meets) // self.stride
            start = last - (count - 1) * step  # the places that output 0 of the phase meets
            padding = max(0, -start, beyond + last)
            taps = slice(self.kernel_size - 1 - meets - (count - 1) * apart, self.kernel_size - meets, apart)
            yield AxisPhase(first, taps, step, padding, start + padding)


class SubConvolutions:
    """Runs the plain convolutions, and puts their results between each other.

    Args:
        axes: The geometry.
        weight: int8 [C_out, C_in / groups, *kernel_size], mirrored.
        absent: int8 [C_out], the integers that stand for a weight of 0.
        groups: Of the channels.
        convolution: Makes what runs one of them, of its weight and geometry.
    """

    def __init__(
        self,
        axes: tuple[Axis, ...],
        weight: Tensor,
        absent: Tensor,
        groups: int,
        convolution: Callable[[Tensor, ConvGeometry], Callable[..., Tensor]],
    ) -> None:
        self.axes = axes
        self.parts: list[tuple[tuple[AxisPhase, ...], Callable[..., Tensor]]] = []
        self._whole = (weight.shape, weight.dtype, weight.device)
        for phase in itertools.product(*(axis.sub_convolutions() for axis in axes)):
            taps: Any = (slice(None), slice(None), *(along.taps or slice(0, 1) for along in phase))
            part = weight[taps]
            if any(along.taps is None for along in phase):  # the bias stands alone
                part = absent.reshape(-1, *[1] * (part.dim() - 1)).expand_as(part)
            padding = tuple(along.padding for along in phase)
            geometry = ConvGeometry(
                kernel_size=tuple(part.shape[2:]),
                stride=(1,) * len(axes),
                dilation=tuple(along.dilation for along in phase),
                groups=groups,
                before=padding,
                after=padding,
                padding_mode="zeros",
            )
            self.parts.append((phase, convolution(part.contiguous(), geometry)))

    @property
    def unpacked(self) -> Callable[[], Tensor] | None:
        """What gives the weight again, as ``nn.weighted`` says."""
        whole = all(unpacking(convolve) is not None for _, convolve in self.parts)
        return self._put_together if whole else None

    def _put_together(self) -> Tensor:
        shape, dtype, device = self._whole
        with torch.inference_mode(False):
            weight = torch.empty(shape, dtype=dtype, device=device)
            for phase, convolve in self.parts:
                unpack = unpacking(convolve)
                if unpack is not None and all(along.taps is not None for along in phase):
                    taps: Any = (..., *(along.taps for along in phase))
                    weight[taps] = unpack()
        return weight

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """The transposed convolution of ``x`` [N, C_in, *spatial]: [N, C_out, *out]. There is no residual."""
        sizes = [axis.output_size(size) for axis, size in zip(self.axes, x.shape[2:], strict=True)]
        whole: Tensor | None = None
        for phase, convolve in self.parts:
            counts = [
                len(range(along.first, size, axis.stride))
                for along, size, axis in zip(phase, sizes, self.axes, strict=True)
            ]
            if 0 in counts:
                continue
            starts = zip((along.skipped for along in phase), counts, strict=True)
            wanted: Any = (..., *(slice(start, start + count) for start, count in starts))
            result = convolve(x, residual=None)[wanted]
            if len(self.parts) == 1:
                return result
            if whole is None:
                whole = _empty(result, sizes)
            steps = zip((along.first for along in phase), self.axes, strict=True)
            places: Any = (..., *(slice(first, None, axis.stride) for first, axis in steps))
            whole[places] = result
        assert whole is not None  # the first phase has outputs if any has
        return whole


def _empty(part: Tensor, sizes: list[int]) -> Tensor:
    """A tensor of other spatial sizes, stored as a part of it is: torch tells channels_last ones from the strides."""
    last = _CHANNELS_LAST.get(part.dim()) if part.stride(1) == 1 else None
    order = torch.contiguous_format if last is None else last
    return torch.empty((*part.shape[:2], *sizes), dtype=part.dtype, device=part.device, memory_format=order)
