"""How often each element of a kernel meets a value of the input: the zeros of padding add nothing to a mean."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from fxquant.graph.macs import TRANSPOSED
from fxquant.kernels.conv.reference import ConvGeometry

Sizes = tuple[tuple[int, ...], tuple[int, ...]]
"""Spatial sizes of the input and of the output of a convolution."""


def padding_coverage(layer: Any, sizes: Sizes | None) -> Tensor:
    """Of each tap, the number of values of an input channel that it meets, divided by that of outputs of a channel.

    That is the part of the outputs at which the tap reads a value, not the zero of padding: exact, a product over the
    dimensions. Whatever the sizes, it is 1 where padding repeats values.

    Args:
        layer: Convolution or transposed convolution of any geometry.
        sizes: None: unknown; then taken for so large that padding does not count.

    Returns:
        float64 [*kernel_size].
    """
    if isinstance(layer, TRANSPOSED):
        if sizes is None:
            return torch.full(layer.kernel_size, 1 / math.prod(layer.stride), dtype=torch.float64)
        inputs, outputs = sizes
        before, steps, limits = layer.padding, inputs, outputs  # each input adds to outputs a stride apart
    else:
        geometry = ConvGeometry.of(layer)
        if sizes is None or geometry.padding_mode != "zeros":
            return torch.ones(geometry.kernel_size, dtype=torch.float64)
        inputs, outputs = sizes
        before, steps, limits = geometry.before, outputs, inputs  # each output reads inputs a stride apart
    shares = torch.ones((), dtype=torch.float64)
    dimensions: Any = zip(layer.kernel_size, layer.dilation, layer.stride, before, steps, limits, outputs, strict=True)
    for taps, dilation, stride, padding, count, limit, out in dimensions:
        met = [_inside(tap * dilation - padding, stride, count, limit) / out for tap in range(taps)]
        shares = shares.unsqueeze(-1) * torch.tensor(met, dtype=torch.float64)
    return shares


def some_read_nothing(layer: Any, sizes: Sizes) -> bool:
    """Whether some outputs are the bias alone: they read nothing but zeros of padding, or lie between all inputs.

    Args:
        layer: Convolution or transposed convolution of any geometry.
        sizes: Spatial, of input and output.
    """
    transposed = isinstance(layer, TRANSPOSED)
    geometry = None if transposed else ConvGeometry.of(layer)
    if geometry is not None and geometry.padding_mode != "zeros":
        return False
    before = layer.padding if geometry is None else geometry.before
    dimensions: Any = zip(layer.kernel_size, layer.dilation, layer.stride, before, *sizes, strict=True)
    for taps, dilation, stride, padding, inputs, outputs in dimensions:
        steps, limit = (inputs, outputs) if transposed else (outputs, inputs)
        places = torch.arange(steps).unsqueeze(1) * stride - padding + torch.arange(taps) * dilation
        inside = (places >= 0) & (places < limit)
        reached = len(places[inside].unique()) if transposed else int(inside.any(1).sum())
        if reached < outputs:
            return True
    return False


def _inside(first: int, step: int, count: int, limit: int) -> int:
    """How many of ``count`` positions, ``step`` apart from ``first`` on, lie in ``range(limit)``."""
    below, inside = (min(max(-((first - end) // step), 0), count) for end in (0, limit))
    return inside - below
