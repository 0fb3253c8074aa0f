"""A transposed convolution on stored integers: several plain ones, one for each place between two inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fxquant.errors import LoweringError
from fxquant.nn.conv import QuantizedConv
from fxquant.nn.sub_convolutions import Axis, SubConvolutions
from fxquant.nn.weight import each_channel_is_a_group
from fxquant.plan.spec import Clamp, QParams

Transposed = nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d

_CONVOLUTION: dict[int, Any] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


class QuantizedConvTranspose(QuantizedConv):
    """``q_y = quantize(act(conv_transpose(x) + bias))`` of stored integers.

    Each output sums the same products as in a plain convolution of stride 1 with the weight mirrored, of the input with
    ``stride - 1`` zeros (the zero point) after each element: that is the reference. What runs leaves the products with
    zeros out: outputs a stride apart multiply the same part of the weight, so each part is a convolution
    (``nn.sub_convolutions``).

    Args:
        conv: The float transposed convolution, batch norm folded in. Any stride, padding, output padding, dilation and
            groups; weight [C_in, C_out / groups, *kernel_size].
        x: Grid of the input; at most 8 bits, per tensor.
        weight: Grid of the weight; at most 8 bits, per tensor, or along axis 1 (output channels of a group), or, where
            every channel is a group of its own, along axis 0.
        y: Grid of the output, after the activation. None: real numbers, as ``float_result`` says.
        activation: Clamp between sum and output, in real units.

    Shape:
        uint8 or int8 [N, C_in, *spatial] or [C_in, *spatial] to [N, C_out, *out] or [C_out, *out].

    Raises:
        LoweringError: a grid that int8 operators cannot take, a weight or a bias that is not finite.
    """

    def __init__(
        self, conv: Transposed, *, x: QParams, weight: QParams, y: QParams | None, activation: Clamp | None = None
    ) -> None:
        plain = plain_convolution(conv)
        super().__init__(plain, x=x, weight=plain_qparams(conv, weight), y=y, activation=activation)
        self.spread = tuple(int(step) for step in conv.stride)
        lengths: Any = zip(conv.kernel_size, conv.stride, conv.padding, conv.output_padding, conv.dilation, strict=True)
        self.axes = tuple(Axis(*along) for along in lengths)
        geometry: Any = zip(conv.dilation, conv.kernel_size, conv.padding, conv.output_padding, strict=True)
        sides = [(step * (size - 1) - cut, more) for step, size, cut, more in geometry]
        self.before = tuple(before for before, _ in sides)
        self.after = tuple(before + more for before, more in sides)

    def pack(self) -> Callable[..., Tensor]:
        weight = self.plain_weight()
        absent = self.weight_zero_point.to(torch.int8).expand(len(weight))
        return SubConvolutions(self.axes, weight, absent, self.geometry.groups, self.convolution)

    def reference(self, *inputs: Tensor) -> Tensor:
        x, *rest = inputs
        return super().reference(self.with_zeros_between(x), *rest)

    def with_zeros_between(self, x: Tensor) -> Tensor:
        """The input of the plain convolution: elements ``stride`` apart, and all padding, filled with the zero point.

        Where the padding of the transposed convolution exceeds the reach of its kernel, elements are cut off instead.
        """
        first = x.dim() - len(self.spread)
        sides: list[tuple[int, int, int, int]] = list(
            zip(x.shape[first:], self.spread, self.before, self.after, strict=True)
        )
        if all(step == 1 and before == after == 0 for _, step, before, after in sides):
            return x
        size = [(length - 1) * step + 1 + max(before, 0) + max(after, 0) for length, step, before, after in sides]
        spread = torch.full([*x.shape[:first], *size], self.scalars("x")[1], dtype=x.dtype, device=x.device)
        places = [slice(max(low, 0), max(low, 0) + (n - 1) * step + 1, step) for n, step, low, _ in sides]
        kept = [slice(max(-low, 0), n - max(-high, 0)) for n, (_, _, low, high) in zip(size, sides, strict=True)]
        inside: Any = (Ellipsis, *places)
        wanted: Any = (Ellipsis, *kept)
        spread[inside] = x
        return spread[wanted]

    def extra_repr(self) -> str:
        return f"transposed, stride={self.spread}, as {super().extra_repr()}"


def plain_convolution(conv: Transposed) -> nn.Conv1d | nn.Conv2d | nn.Conv3d:
    """The convolution with stride 1 that sums the same products: weight mirrored, [C_out, C_in / groups, *kernel]."""
    groups, inner = conv.groups, conv.weight.shape[1]
    spatial = len(conv.kernel_size)
    weight = conv.weight.detach().reshape(groups, -1, inner, *conv.kernel_size).transpose(1, 2)
    weight = weight.flatten(0, 1).flip(tuple(range(2, 2 + spatial))).contiguous()
    plain = _CONVOLUTION[spatial](
        conv.in_channels,
        conv.out_channels,
        conv.kernel_size,
        dilation=conv.dilation,
        groups=groups,
        bias=conv.bias is not None,
        device="meta",  # initializing on the CPU would draw from the user's random numbers
    )
    plain.weight = nn.Parameter(weight, requires_grad=False)
    plain.bias = None if conv.bias is None else nn.Parameter(conv.bias.detach(), requires_grad=False)
    return plain


def plain_qparams(conv: Transposed, weight: QParams) -> QParams:
    """The grid of the plain convolution's weight: one scale per output channel, or one for the tensor."""
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
