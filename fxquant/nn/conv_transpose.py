"""A transposed convolution on quantized values: several plain ones, each for the outputs that lie a stride apart."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from fxquant.errors import InputError, LoweringError
from fxquant.kernels.conv.reference import ConvGeometry
from fxquant.nn.conv import QuantizedConv
from fxquant.nn.weight import each_channel_is_a_group, unpack_method_of
from fxquant.patterns.pattern import UnitView
from fxquant.plan.spec import Clamp, QParams

Transposed = nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d

_CONVOLUTION: dict[int, Any] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


class QuantizedConvTranspose(QuantizedConv):
    """``q_y = quantize(act(conv_transpose(x) + bias))`` of quantized values.

    Each output sums the same products as in a plain convolution of stride 1 with the weight mirrored, of the input with
    ``stride - 1`` zeros (the zero point) after each element: that is the reference. What runs leaves the products with
    zeros out: outputs a stride apart multiply the same part of the weight, so each part is a convolution
    (``SubConvolutions``).

    Args:
        conv: The float transposed convolution, batch norm folded in. Any stride, padding, output padding, dilation and
            groups; weight [C_in, C_out / groups, *kernel_size].
        x: Qparams of the input; at most 8 bits, per tensor.
        weight: Qparams of the weight; at most 8 bits, per tensor, or along axis 1 (output channels of a group), or,
            where every channel is a group of its own, along axis 0.
        y: Qparams of the output, after the activation. None: float values, as ``float_result`` says.
        activation: Clamp between sum and output, of float values.

    Shape:
        uint8 or int8 [N, C_in, *spatial] or [C_in, *spatial] to [N, C_out, *out] or [C_out, *out].

    Raises:
        LoweringError: qparams that int8 operators cannot take, a weight or a bias that is not finite.
    """

    def __init__(
        self, conv: Transposed, *, x: QParams, weight: QParams, y: QParams | None, activation: Clamp | None = None
    ) -> None:
        plain = plain_convolution(conv)
        super().__init__(plain, x=x, weight=plain_qparams(conv, weight), y=y, activation=activation)
        self.spread = tuple(int(step) for step in conv.stride)
        lengths: Any = zip(conv.kernel_size, conv.stride, conv.padding, conv.output_padding, conv.dilation, strict=True)
        self.axes = tuple(Axis(*along) for along in lengths)
        self.before, self.after = plain_padding(conv)

    @classmethod
    def from_unit(cls, unit: UnitView) -> QuantizedConvTranspose:
        """Build the module of a unit, from its transposed convolution ``conv``."""
        return cls(
            unit.modules["conv"],
            x=unit.qparams["x"],
            weight=unit.qparams["weight"],
            y=unit.qparams.get("y"),
            activation=unit.activation,
        )

    def pack(self) -> Callable[..., Tensor]:
        weight = self.unpacked_weight()
        absent = self.weight_zero_point.to(torch.int8).expand(len(weight))
        return SubConvolutions(self.axes, weight, absent, self.geometry.groups, self.convolution)

    def reference(self, *inputs: Tensor) -> Tensor:
        x, *rest = inputs
        spread = with_zeros_between(x, self.spread, self.before, self.after, self.scalars("x")[1])
        return super().reference(spread, *rest)

    def extra_repr(self) -> str:
        return f"transposed, stride={self.spread}, as {super().extra_repr()}"


def plain_padding(conv: Transposed) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return what the plain convolution pads before and after its input, along each axis; below 0 is cut off."""
    along: Any = zip(conv.dilation, conv.kernel_size, conv.padding, conv.output_padding, strict=True)
    sides = [(step * (size - 1) - cut, more) for step, size, cut, more in along]
    return tuple(before for before, _ in sides), tuple(before + more for before, more in sides)


def with_zeros_between(
    x: Tensor, stride: Sequence[int], before: Sequence[int], after: Sequence[int], zero: float
) -> Tensor:
    """Return the input of the plain convolution: elements ``stride`` apart, padding, and ``zero`` between.

    Args:
        x: [N, C_in, *spatial] or [C_in, *spatial], of any dtype.
        stride: Of the transposed convolution.
        before, after: What ``plain_padding`` gives. Where the padding of the transposed convolution exceeds the reach
            of its kernel, elements are cut off instead.
        zero: What stands for 0.
    """
    first = x.dim() - len(stride)
    sides: list[tuple[int, int, int, int]] = list(zip(x.shape[first:], stride, before, after, strict=True))
    if all(step == 1 and low == high == 0 for _, step, low, high in sides):
        return x
    size = [(length - 1) * step + 1 + max(low, 0) + max(high, 0) for length, step, low, high in sides]
    spread = torch.full([*x.shape[:first], *size], zero, dtype=x.dtype, device=x.device)
    places = [slice(max(low, 0), max(low, 0) + (n - 1) * step + 1, step) for n, step, low, _ in sides]
    kept = [slice(max(-low, 0), n - max(-high, 0)) for n, (_, _, low, high) in zip(size, sides, strict=True)]
    inside: Any = (Ellipsis, *places)
    wanted: Any = (Ellipsis, *kept)
    spread[inside] = x
    return spread[wanted]


def plain_convolution(conv: Transposed) -> nn.Conv1d | nn.Conv2d | nn.Conv3d:
    """Return the convolution with stride 1 that sums the same products; its weight is mirrored."""
    weight = mirrored_weight(conv.weight.detach(), conv.groups)
    plain = _CONVOLUTION[len(conv.kernel_size)](
        conv.in_channels,
        conv.out_channels,
        conv.kernel_size,
        dilation=conv.dilation,
        groups=conv.groups,
        bias=conv.bias is not None,
        device="meta",  # initializing on the CPU would draw from the user's random numbers
    )
    plain.weight = nn.Parameter(weight, requires_grad=False)
    plain.bias = None if conv.bias is None else nn.Parameter(conv.bias.detach(), requires_grad=False)
    return plain


def mirrored_weight(weight: Tensor, groups: int) -> Tensor:
    """Return the weight [C_in, C_out / groups, *kernel_size] as the plain convolution has it.

    Its shape is [C_out, C_in / groups, *kernel_size]. The function is its own inverse: it swaps the channels of each
    group, and mirrors the kernel.
    """
    by_group = weight.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1)
    return by_group.flip(tuple(range(2, weight.dim()))).contiguous()


def plain_qparams(conv: Transposed, weight: QParams) -> QParams:
    """Return the qparams of the plain convolution's weight: one scale per output channel, or one for the tensor."""
    axis = weight.scheme.axis
    if axis is None or (axis % conv.weight.dim() == 0 and each_channel_is_a_group(conv)):
        return weight
    if axis % conv.weight.dim() != 1:
        raise LoweringError(
            "int8 operators need one scale per output channel of the weight",
            got=f"axis={axis} of a transposed weight of shape {list(conv.weight.shape)}",
            expected="axis=1, or one scale for the whole tensor",
        )
    scheme = replace(weight.scheme, axis=0)
    return QParams(scheme, weight.scale.repeat(conv.groups), weight.zero_point.repeat(conv.groups))


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
        """Return one for each output before the stride."""
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
        """What gives the weight again, as ``WeightedModule`` needs it."""
        whole = all(unpack_method_of(convolve) is not None for _, convolve in self.parts)
        return self._put_together if whole else None

    def _put_together(self) -> Tensor:
        shape, dtype, device = self._whole
        with torch.inference_mode(False):
            weight = torch.empty(shape, dtype=dtype, device=device)
            for phase, convolve in self.parts:
                unpack = unpack_method_of(convolve)
                if unpack is not None and all(along.taps is not None for along in phase):
                    taps: Any = (..., *(along.taps for along in phase))
                    weight[taps] = unpack()
        return weight

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Return the transposed convolution of ``x`` [N, C_in, *spatial]: [N, C_out, *out]. There is no residual."""
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
        if whole is None:
            raise InputError(
                "an image is too small for a transposed convolution",
                got=f"{list(x.shape[2:])}, whose result would have {sizes}",
                expected="a result of at least one value along each axis",
            )
        return whole


def _empty(part: Tensor, sizes: list[int]) -> Tensor:
    """Return a tensor of other spatial sizes, stored as a part of it is, which may be channels_last."""
    last = _CHANNELS_LAST.get(part.dim()) if part.stride(1) == 1 else None
    order = torch.contiguous_format if last is None else last
    return torch.empty((*part.shape[:2], *sizes), dtype=part.dtype, device=part.device, memory_format=order)
