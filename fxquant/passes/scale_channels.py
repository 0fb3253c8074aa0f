"""Divides the channels of values by factors: in the parameters of the layers that make them, and of those that read
them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from fxquant.graph.macs import TRANSPOSED
from fxquant.nn.folding import along_inputs, along_outputs
from fxquant.passes.base import PassContext, graph_pass
from fxquant.plan.region import End, Region


@graph_pass(after=("split_norms",), keeps_values=True)
def scale_channels(gm: GraphModule, ctx: PassContext) -> GraphModule:
    """Divide the channels of values by factors, and multiply the weights that read them, where no clamp stands between.

    Source:
        Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction", arXiv:1906.04721,
        section 4.1.
    """
    _scale(gm, ctx, clamped=False)
    return gm


@graph_pass(after=("scale_channels",))
def scale_clamped_channels(gm: GraphModule, ctx: PassContext) -> GraphModule:
    """Do the same where a clamp stands between, whose bounds no value of the data reaches, before or after."""
    _scale(gm, ctx, clamped=True)
    return gm


def _scale(gm: GraphModule, ctx: PassContext, *, clamped: bool) -> None:
    with torch.no_grad():
        for region, factors in ctx.factors:
            if bool(region.bounds) == clamped:
                _scale_region(gm, region, factors, set())


def _scale_region(gm: GraphModule, region: Region, factors: Tensor, seen: set[tuple[int, str]]) -> None:
    """Scale the parameters of one region. One that several layers have is scaled once."""
    for end in (*region.sources, *region.sinks):
        layer: Any = gm.get_submodule(end.path)
        own = factors_of(end, factors)
        if end.kind == "columns":
            _multiply(layer.weight, along_inputs(own, layer, outputs_axis(layer)), "columns", seen)
            continue
        made = output_factors(end, factors)
        shape = made if end.kind == "norm" else along_outputs(made, layer, outputs_axis(layer))
        side = "rows" if end.kind == "norm" else end.kind
        _multiply(layer.weight, shape, side, seen)
        if layer.bias is not None:
            _multiply(layer.bias, made, side, seen)


def factors_of(end: End, factors: Tensor) -> Tensor:
    """Return the factor of each channel of a layer, float64 [C]; 1 where the channel keeps its scale."""
    return torch.cat((factors.double(), torch.ones(1, dtype=torch.float64)))[torch.tensor(end.factors)]


def output_factors(end: End, factors: Tensor) -> Tensor:
    """Return what the outputs of a layer are multiplied by, float64 [C]; 1 where the channel keeps its scale."""
    own = factors_of(end, factors)
    return own if end.kind == "partner" else 1 / own


def outputs_axis(layer: nn.Module) -> int:
    """Return the dimension of a weight that counts output channels."""
    return 1 if isinstance(layer, TRANSPOSED) else 0


def _multiply(parameter: Tensor, factor: Tensor, side: str, seen: set[tuple[int, str]]) -> None:
    """Multiply in float64, in place, so that layers which share the parameter go on sharing it."""
    if (id(parameter), side) not in seen:
        seen.add((id(parameter), side))
        parameter.data.copy_(parameter.data.double() * factor.to(parameter.device))
