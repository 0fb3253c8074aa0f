"""Chooses the factors by which queries and keys get ranges that are alike, channel by channel."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.fx import GraphModule

from fxquant.equalization.clamps import Extremes
from fxquant.equalization.factors import DEAD, LARGEST
from fxquant.equalization.layers import channel_axis
from fxquant.plan.region import End, Region


def query_and_key_nodes(gm: GraphModule, region: Region) -> Iterator[tuple[str, int]]:
    """Yield the nodes that make queries and keys, each with the dimension that counts channels, from the end."""
    for end in (*region.sources, *region.sinks):
        for name in _calls(gm, end):
            yield name, channel_axis(gm.get_submodule(end.path))


def product_factors(gm: GraphModule, region: Region, extremes: Extremes) -> Tensor:
    """Return ``s = sqrt(q / k)`` of the largest query and key of each channel, float64 [channels].

    Queries are divided by it and keys multiplied, so both have the range ``sqrt(q * k)``. The mean of its logarithms is
    0. Channels that are 0 throughout on either side keep their scale.

    Args:
        gm: The graph whose values were seen.
        region: Of a product.
        extremes: Of the values that ``query_and_key_nodes`` names.

    Source:
        Xiao et al., "SmoothQuant", arXiv:2211.10438, eq. 4, with an exponent of 0.5, for two values.
    """
    queries, keys = (_largest(gm, region, ends, extremes) for ends in (region.sources, region.sinks))
    alive = (queries > DEAD) & (keys > DEAD) & queries.isfinite() & keys.isfinite()
    if not bool(alive.any()):
        return torch.ones_like(queries)
    factors = (queries.where(alive, 1.0) / keys.where(alive, 1.0)).sqrt()
    factors = factors / factors[alive].log().mean().exp()
    return torch.where(alive, factors.clamp(1 / LARGEST, LARGEST), 1.0)


def _largest(gm: GraphModule, region: Region, ends: tuple[End, ...], extremes: Extremes) -> Tensor:
    largest = torch.zeros(region.channels + 1, dtype=torch.float64)
    for end in ends:
        at = torch.tensor([index if index >= 0 else region.channels for index in end.factors])
        for name in _calls(gm, end):
            if name in extremes.low:
                seen = torch.maximum(-extremes.low[name], extremes.high[name]).clamp(min=0)
                largest.scatter_reduce_(0, at, seen, "amax")
    return largest[:-1]


def _calls(gm: GraphModule, end: End) -> list[str]:
    return [node.name for node in gm.graph.nodes if node.op == "call_module" and str(node.target) == end.path]
