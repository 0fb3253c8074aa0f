"""Chooses the factors of all regions, each by the method that is for it, in one or two passes over the data."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fxquant.equalization.choices import sink_schemes
from fxquant.equalization.clamps import limits_of, measure
from fxquant.equalization.factors import WeightRanges, weight_factors
from fxquant.equalization.layers import channel_axis
from fxquant.equalization.product_factors import product_factors, query_and_key_nodes
from fxquant.equalization.smoothing import Smoothing, sink_calls
from fxquant.plan.region import Region
from fxquant.quantizer.quantizer import Quantizer


@dataclass(frozen=True, slots=True)
class FactorChoice:
    """Chooses factors.

    Args:
        prepared: The model. It is not changed.
        regions: All of its regions.
        methods: ``"weights"``, ``"smooth"`` and ``"products"`` -> the numbers of the regions that each is for.
        iterations: Rounds over the regions that weights decide, at most.
        headroom: How many times the largest value before a clamp must lie within the bound.
    """

    prepared: Quantizer
    regions: Sequence[Region]
    methods: Mapping[str, Sequence[int]]
    iterations: int
    headroom: float

    def run(self, data: Callable[[], Iterable[Mapping[str, Any]]]) -> dict[int, Tensor]:
        """Return the factors of each region, float64 [channels], by its number.

        Args:
            data: Gives the inputs of each batch by name, anew in each call; none without data.
        """
        # What data shows of clamps, and of the values that methods look at.
        by_weights, by_values, of_products = (self.methods[name] for name in ("weights", "smooth", "products"))
        gm, chosen = copy.deepcopy(self.prepared.graph_module), (*by_weights, *by_values)
        read = {
            node.all_input_nodes[0].name: channel_axis(gm.get_submodule(str(node.target)))
            for number in by_values
            for node, _ in sink_calls(gm, self.regions[number])
        }
        read |= {name: axis for number in of_products for name, axis in query_and_key_nodes(gm, self.regions[number])}
        extremes = measure(gm, [self.regions[number] for number in chosen], data(), read)  # data is checked here
        # Weights are balanced before the weights that read values are looked at.
        ranges = WeightRanges(gm, self.regions)
        limits = {number: limits_of(self.regions[number], extremes, self.headroom) for number in chosen}
        found = weight_factors(ranges, {number: limits[number] for number in by_weights}, self.iterations)
        found |= {number: product_factors(gm, self.regions[number], extremes) for number in of_products}
        if not by_values:
            return found
        smoothing = Smoothing(
            gm,
            {number: self.regions[number] for number in by_values},
            sink_schemes(self.prepared),
            {number: ranges.of(number)[1] for number in by_values},
            limits,
            extremes,
        )
        return {**found, **smoothing.run(data())}
