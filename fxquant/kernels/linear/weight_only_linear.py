"""``fxquant::weight_only_linear``: floats times a weight of 4 or 8 bits, dequantized as it is read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.call import OperatorCall, define_operator, operator_of
from fxquant.kernels.checks import check_dtype
from fxquant.kernels.gradient import Differentiable, below_autograd, differentiate
from fxquant.kernels.linear.grouped_weight import PANEL, bytes_of_group, dequantized, unpack_grouped

STRETCH = 128
"""Values whose products are summed before their scale is applied, at most; a stretch ends where its group ends."""

PARTIAL_SUMS = 4
"""Of a stretch: products k, k + 4, k + 8, ... have one sum."""

SUMS_AT_ONCE = 1 << 22
"""Partial sums that the reference holds at a time."""


@dataclass(eq=False, repr=False)
class WeightOnlyLinearCall(OperatorCall):
    """Multiply floats by a weight of signed integers, of which groups of a row share a scale, and add a bias.

    All arithmetic is float32, each operation rounded, in this order. A group is summed in stretches of at most 128
    values. A stretch has four partial sums of ``x[k] * (q[k] - zero_point)``, by ``k % 4`` from where it begins, each
    in the order of k; they are added as ``(p0 + p1) + (p2 + p3)``. The sums of the stretches, each times the scale of
    its group, are added one after the other, and the bias at last. So no result depends on the other rows of ``x``.

    The gradient of ``x`` is the incoming one times the dequantized weight. Nothing else has a gradient.

    Returns:
        float32 [..., out_features], contiguous.

    Raises:
        RuntimeError: an argument is not as the fields say; the message names it.
    """

    op: ClassVar[str] = "fxquant::weight_only_linear"
    gradient: ClassVar[bool] = True

    x: Tensor
    """float32 [..., in_features]."""
    weight: Tensor
    """uint8 [panels * groups * bytes of a group, 16], as
    :func:`~fxquant.kernels.linear.grouped_weight.pack_grouped` gives it."""
    scale: Tensor
    """float32 [groups, panels * 16]: of the groups of every output feature. Of the last panel some may belong to none:
    these do not matter. One group is the whole row."""
    zero_point: Tensor | None
    """int8, of the same shape. None: all are 0."""
    bias: Tensor
    """float32 [out_features]."""
    bits: int
    """Of a quantized value in the packed weight, 4 or 8."""

    def empty_result(self) -> Tensor:
        self._check_dtypes()
        self._check_shapes()
        return self.x.new_empty([*self.x.shape[:-1], self.bias.numel()])

    def _check_dtypes(self) -> None:
        check_dtype(self.op, "x", self.x, (torch.float32,))
        check_dtype(self.op, "weight", self.weight, (torch.uint8,))
        check_dtype(self.op, "scale", self.scale, (torch.float32,))
        if self.zero_point is not None:
            check_dtype(self.op, "zero_point", self.zero_point, (torch.int8,))
        check_dtype(self.op, "bias", self.bias, (torch.float32,))
        if self.bits not in (4, 8):
            raise KernelError(f"{self.op}: bits is out of range", got=self.bits, expected="4 or 8")

    def _check_shapes(self) -> None:
        op, x, scale, zero_point = self.op, self.x, self.scale, self.zero_point
        if x.dim() == 0:
            raise KernelError(f"{op}: x has the wrong shape", got=[], expected="[..., in_features]")
        if self.bias.dim() != 1:
            got = list(self.bias.shape)
            raise KernelError(f"{op}: bias has the wrong shape", got=got, expected="[out_features]")
        panels, in_features = math.ceil(self.bias.numel() / PANEL), x.shape[-1]
        if scale.dim() != 2 or scale.shape[0] < 1 or scale.shape[1] != panels * PANEL:
            expected = f"[groups, {panels * PANEL}]"
            raise KernelError(f"{op}: scale has the wrong shape", got=list(scale.shape), expected=expected)
        if zero_point is not None and zero_point.shape != scale.shape:
            expected = f"{list(scale.shape)}, as scale"
            raise KernelError(f"{op}: zero_point has the wrong shape", got=list(zero_point.shape), expected=expected)
        groups = scale.shape[0]
        if in_features % groups:
            raise KernelError(
                f"{op}: the rows of x do not divide into groups",
                got=f"{in_features} values, {groups} groups",
                expected="groups of equal size",
            )
        size = groups * bytes_of_group(in_features // groups, self.bits)
        if list(self.weight.shape) != [panels * size, PANEL]:
            expected = f"[{panels} * {size}, 16]"
            raise KernelError(f"{op}: weight has the wrong shape", got=list(self.weight.shape), expected=expected)

    def reference(self) -> Tensor:
        y = self.empty_result()
        if y.numel() == 0:
            return y
        channels, groups, in_features = self.bias.numel(), self.scale.shape[0], self.x.shape[-1]
        weight = unpack_grouped(self.weight, channels, in_features, groups, self.bits).to(torch.float32)
        if self.zero_point is not None:
            grouped = weight.reshape(channels, groups, in_features // groups)
            weight = (grouped - self.zero_point[:, :channels].t()[:, :, None]).flatten(1)
        values, scale = in_stretches(weight, groups), self.scale[:, :channels]
        rows, sums = self.x.reshape(y.numel() // channels, in_features), y.view(-1, channels)
        step = max(1, SUMS_AT_ONCE // max(1, channels * values.shape[1] * values.shape[2] * PARTIAL_SUMS))
        for first in range(0, len(rows), step):
            sums[first : first + step] = summed(in_stretches(rows[first : first + step], groups), values, scale)
        return y.add_(self.bias)


def in_stretches(rows: Tensor, groups: int) -> Tensor:
    """Divide rows into the stretches of their groups, zeros after the last value of each.

    Args:
        rows: float32 [rows, groups * group_size].
        groups: Of a row.

    Returns:
        float32 [rows, groups, stretches, products of a partial sum, partial sums].
    """
    grouped = rows.reshape(len(rows), groups, rows.shape[1] // groups)
    size = grouped.shape[2]
    length = min(STRETCH, math.ceil(size / PARTIAL_SUMS) * PARTIAL_SUMS) if size else PARTIAL_SUMS
    padded = torch.nn.functional.pad(grouped, (0, -size % length))
    return padded.reshape(len(rows), groups, padded.shape[2] // length, length // PARTIAL_SUMS, PARTIAL_SUMS)


def summed(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """Add products in the order that the operator defines.

    Args:
        x: float32 [rows, ...], as :func:`in_stretches` gives it.
        weight: float32 [channels, ...], likewise.
        scale: float32 [groups, channels].

    Returns:
        float32 [rows, channels].
    """
    _, groups, stretches, products, _ = weight.shape
    partial = x.new_zeros((len(x), len(weight), groups, stretches, PARTIAL_SUMS))
    for k in range(products):
        partial = partial + x[:, None, :, :, k] * weight[None, :, :, :, k]
    p0, p1, p2, p3 = partial.unbind(-1)
    sums, total = (p0 + p1) + (p2 + p3), x.new_zeros((len(x), len(weight)))
    for group in range(groups):
        for stretch in range(stretches):
            total = total + sums[:, :, group, stretch] * scale[group]
    return total


weight_only_linear, reference = define_operator(WeightOnlyLinearCall)
_OPERATOR = operator_of("weight_only_linear")


class _Products(Differentiable):
    """Keeps no float weight: the gradient dequantizes it again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *rest: Any) -> Tensor:
        ctx.rest, ctx.in_features = rest, x.shape[-1]
        return below_autograd(_OPERATOR, x, *rest)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return grad @ _float_weight(ctx), None, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *others: Any) -> Tensor:
        return tangent @ _float_weight(ctx).t()


def _float_weight(ctx: Any) -> Tensor:
    weight, scale, zero_point, bias, bits = ctx.rest
    return dequantized(weight, scale, zero_point, bits, (bias.numel(), ctx.in_features))


differentiate(_OPERATOR, _Products.apply)
