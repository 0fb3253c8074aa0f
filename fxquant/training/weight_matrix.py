"""Weights of linear layers and convolutions as matrices, one for each group: rows are outputs, columns are inputs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fxquant.fake_quantize.qparams import from_integers, to_integers
from fxquant.nn.conv_transpose import mirrored_weight
from fxquant.plan.spec import QParams, QScheme


@dataclass(slots=True)
class WeightMatrix:
    """A weight with the qparams of each of its values. All tensors are float64 [groups, outputs, inputs].

    Columns are taps, the last dimension of the kernel fastest, and then input channels, as ``patches`` has them. A
    transposed convolution has the matrix of the plain one that sums the same products: ``mirrored_weight``.
    """

    weight: Tensor
    scale: Tensor
    zero_point: Tensor
    nearest: Tensor
    """The integers that ``convert`` gives: each value is rounded to the nearest step."""
    scheme: QScheme
    by_row: bool
    """No two outputs share a scale."""
    runs: Tensor | None
    """int64 [inputs]: the number of the run of inputs that share a scale; None where a scale is that of a whole row, or
    of values of several rows."""

    @classmethod
    def of(cls, weight: Tensor, qparams: QParams, groups: int, transposed: bool = False) -> WeightMatrix:
        """Take a weight apart.

        Args:
            weight: float [C_out, C_in / groups, *kernel_size]; of a transposed convolution
                [C_in, C_out / groups, *kernel_size].
            qparams: Of any granularity.
            groups: Of the convolution; 1 for a linear layer.
            transposed: Whether the convolution is transposed.
        """
        scheme = qparams.scheme
        ones, zeros = (
            make(weight.shape, dtype=torch.int32, device=weight.device) for make in (torch.ones, torch.zeros)
        )
        # What 1 stands for without zero points is the scale; what 0 stands for with a scale of 1, the zero point.
        scale = from_integers(ones, qparams.scale, torch.zeros_like(qparams.zero_point), scheme)
        zero_point = -from_integers(zeros, torch.ones_like(qparams.scale), qparams.zero_point, scheme)
        by_row, runs = _is_by_row(weight, scheme, groups, transposed), None
        if scheme.group_size is not None and by_row:
            taps = weight[0, 0].numel()
            runs = (torch.arange(weight.shape[1], device=weight.device) // scheme.group_size).repeat(taps)
        integers = to_integers(weight, qparams.scale, qparams.zero_point, scheme)
        matrices = [as_matrices(each, groups, transposed).double() for each in (weight, scale, zero_point, integers)]
        return cls(matrices[0], matrices[1], matrices[2], matrices[3], scheme, by_row, runs)

    def errors(self, integers: Tensor, products: Tensor) -> Tensor:
        """Return the squared error of each output, summed over what the products are of; float64 [groups, outputs].

        Args:
            integers: float64 [groups, outputs, inputs].
            products: float64 [groups, inputs, inputs], the sums of products of two inputs.
        """
        error = (integers - self.zero_point) * self.scale - self.weight
        return ((error @ products) * error).sum(-1).clamp(min=0)

    def qparams(self, like: QParams) -> QParams:
        """Return the qparams in the shape of ``like``: of each row, or of each run of its inputs; else ``like``."""
        if not self.by_row:
            return like
        first = [0] if self.runs is None else [int((self.runs == run).nonzero()[0]) for run in self.runs.unique()]
        scale, zero_point = (
            each[:, :, first].flatten(0, 1).reshape(like.scale.shape) for each in (self.scale, self.zero_point)
        )
        return replace(like, scale=scale.to(like.scale), zero_point=zero_point.to(like.zero_point))


def steps_of(weight: Tensor, scale: Tensor, zero_point: Tensor, scheme: QScheme) -> Tensor:
    """Return the integers nearest to float values, as floats."""
    return ((weight / scale).round() + zero_point).clamp(scheme.quant_min, scheme.quant_max)


def _is_by_row(weight: Tensor, scheme: QScheme, groups: int, transposed: bool) -> bool:
    """Tell whether each output channel has scales of its own; those of groups share them in a transposed weight."""
    if scheme.axis is None:
        return False
    axis = scheme.axis % weight.dim()
    if not transposed:
        return axis == 0
    return scheme.group_size is None and (axis == 1 if groups == 1 else axis == 0 and groups == weight[:, 0].shape[0])


def as_matrices(weight: Tensor, groups: int, transposed: bool = False) -> Tensor:
    """From [C_out, C_in / groups, *kernel_size] to [groups, C_out / groups, taps * C_in / groups].

    A transposed weight, [C_in, C_out / groups, *kernel_size], gives the matrices of the plain one.
    """
    plain = mirrored_weight(weight, groups) if transposed else weight
    return plain.movedim(1, -1).flatten(1).unflatten(0, (groups, -1))


def from_matrices(matrices: Tensor, shape: Any, transposed: bool = False) -> Tensor:
    """Invert ``as_matrices``; ``shape`` is that of the weight."""
    groups = len(matrices)
    plain = (shape[1] * groups, shape[0] // groups, *shape[2:]) if transposed else shape
    weight = matrices.flatten(0, 1).reshape(plain[0], *plain[2:], plain[1]).movedim(-1, 1).contiguous()
    return mirrored_weight(weight, groups) if transposed else weight
