"""Takes out of the bias what rounding the weight adds to the output on average."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from fxquant.fake_quantize.adaround import learned_bias
from fxquant.graph.edit import add_module
from fxquant.graph.macs import TRANSPOSED
from fxquant.graph.query import called_module
from fxquant.kernels.conv.reference import ConvGeometry
from fxquant.nn.fake_quantize import FLOAT_BIAS
from fxquant.passes.base import PassContext, graph_pass, weighted_nodes
from fxquant.passes.rounding import rounded_weight
from fxquant.passes.structural_zeros import Sizes, spatial_sizes, structural_zeros


@graph_pass(after=("fold_conv_bn", "observe_weights"))
def correct_bias(gm: GraphModule, ctx: PassContext) -> GraphModule:
    """Subtract from each bias the mean error that rounding the weight adds to the output.

    ``bias' = bias - (w' - w) * E[x]``, with ``w'`` the rounded weight and ``E[x]`` the calibrated mean of each input
    channel: ``E[w' x + bias'] = E[w x + bias]``. Zeros of padding lower the mean that a tap of a convolution meets.
    A bias that was learned together with the rounding takes the place of the float one.
    """
    zeros = structural_zeros(gm)
    for node, unit in weighted_nodes(gm, ctx):
        learned = learned_bias(ctx.weight_layers.get(unit.root))
        if learned is not None:
            layer = with_bias(called_module(node), learned)
            node.target = add_module(gm, str(node.target), layer, instead_of=(node,))
            continue
        if "mean" not in unit.roles:
            continue
        means = ctx.means.get(unit.roles["mean"])
        rounded = None if means is None else rounded_weight(node, unit, ctx)
        layer = corrected(called_module(node), rounded, means, spatial_sizes(node), keeps_zeros=node in zeros)
        node.target = add_module(gm, str(node.target), layer, instead_of=(node,))
    return gm


def corrected(
    layer: nn.Module,
    rounded: Tensor | None,
    means: Tensor | None,
    sizes: Sizes | None = None,
    keeps_zeros: bool = False,
) -> nn.Module:
    """Return a copy of ``layer`` that gives the same on average when its weight is replaced by ``rounded``.

    It has a bias even where nothing is known, so that the state of a calibrated model fits. A linear layer
    without a bias gives zeros for a row of zeros, as padding tokens are: these zeros stay.

    Args:
        layer: Convolution, transposed convolution or linear layer. Not changed.
        rounded: Of the shape of its weight.
        means: float64 [C_in], the mean of each input channel, taken to be the same at all places.
        sizes: Spatial, of input and output of a convolution: they say what part of its sums is padding.
        keeps_zeros: Whether its bias stays as it is, because some outputs are zero whatever the input is.

    Source:
        Nagel et al., arXiv:1906.04721, section 4.2, with means that were measured.
    """
    new: Any = layer
    old: Tensor | None = new.bias
    bias = _float_bias(new).double()
    # Rows that are exactly zero stay zero: a norm after them would blow up whatever is added.
    keeps_zeros = keeps_zeros or (new.weight.dim() == 2 and old is None)
    if rounded is not None and means is not None and not keeps_zeros:
        bias = bias - mean_error(layer, rounded.double() - new.weight.detach().double(), means, sizes)
    return with_bias(layer, bias)


def with_bias(layer: nn.Module, bias: Tensor) -> nn.Module:
    """Return a copy of ``layer`` with another bias, that knows the one of the float model still."""
    new: Any = copy.copy(layer)  # hooks and hyperparameters as they are; another call keeps its bias
    new._buffers = {**layer._buffers, FLOAT_BIAS: _float_bias(new)}
    new._non_persistent_buffers_set = {*layer._non_persistent_buffers_set, FLOAT_BIAS}
    new._parameters = {**layer._parameters, "bias": nn.Parameter(bias.to(new.weight.dtype), new.weight.requires_grad)}
    return new


def _float_bias(layer: Any) -> Tensor:
    """Return the bias of a layer, detached; zeros where it has none."""
    if layer.bias is not None:
        found: Tensor = layer.bias.detach()
        return found
    outputs = layer.out_channels if hasattr(layer, "out_channels") else layer.out_features
    zeros: Tensor = layer.weight.detach().new_zeros(outputs)
    return zeros


def mean_error(layer: Any, error: Tensor, means: Tensor, sizes: Sizes | None = None) -> Tensor:
    """Return the output of ``layer`` for inputs of those means, with ``error`` as its weight; float64 [C_out]."""
    groups = getattr(layer, "groups", 1)
    taps = (error * padding_coverage(layer, sizes).to(error.device)).flatten(2).sum(2) if error.dim() > 2 else error
    by_group = means.to(error.device).view(groups, -1, 1)
    if isinstance(layer, TRANSPOSED):  # [C_in, C_out / groups]
        taps = taps.view(groups, -1, taps.shape[1]).transpose(1, 2)
    else:
        taps = taps.view(groups, -1, taps.shape[1])
    return (taps @ by_group).flatten()


def padding_coverage(layer: Any, sizes: Sizes | None) -> Tensor:
    """Return, for each kernel element (tap), the fraction of output positions at which it reads input, not padding.

    It is exact: a product over the dimensions. Where padding repeats values, it is 1 whatever the sizes.

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


def _inside(first: int, step: int, count: int, limit: int) -> int:
    """Count those of ``count`` positions, ``step`` apart from ``first`` on, that lie in ``range(limit)``."""
    below, inside = (min(max(-((first - end) // step), 0), count) for end in (0, limit))
    return inside - below
