"""Looks for the factors of all regions, and keeps those by which the noise falls."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fxquant.equalization.choices import choice_for, weight_schemes
from fxquant.equalization.factor_choice import FactorChoice
from fxquant.equalization.noise import RegionNoise
from fxquant.equalization.regions import find_regions
from fxquant.equalization.scaled_copy import Batch, scaled_copy, simulation
from fxquant.equalization.splitting import find_splits
from fxquant.equalization.table import EqualizedRegion
from fxquant.plan.region import Region, Split
from fxquant.quantizer.quantizer import Quantizer

PASSES_OVER_DATA = 6
"""Extremes of values; factors by values; calibration without and with factors; noise without and with them."""
UNCHANGED = 1e-9
"""A factor that lies nearer to 1 counts as 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The arguments of ``equalize`` that factors depend on."""

    method: str
    iterations: int
    headroom: float
    keep_if: float


@dataclass(slots=True)
class Search:
    """Finds regions and their factors for one model.

    Args:
        prepared: The model. It is not changed; where norms get a second one, a copy stands in its place.
        data: Positional and keyword arguments of each batch; None: there is no data.
        inputs: The same by the names of the arguments.
        options: How factors are chosen.
        seen: Called after each batch, ``PASSES_OVER_DATA`` times.
    """

    prepared: Quantizer
    data: Sequence[Batch] | None
    inputs: Sequence[Mapping[str, Any]]
    options: Options
    seen: Callable[[], object]
    regions: tuple[Region, ...] = field(init=False, default=())
    splits: tuple[Split, ...] = field(init=False, default=())
    """Norms that have a second one here, whether it is used or not."""
    outcomes: dict[int, str] = field(init=False, default_factory=dict)
    """Number of a region -> what became of it."""
    factors: dict[int, Tensor] = field(init=False, default_factory=dict)
    """Number of a region -> the factors that are used."""
    noise: dict[int, tuple[float, float]] = field(init=False, default_factory=dict)

    def run(self) -> None:
        """Set ``regions``, ``outcomes``, ``factors`` and ``noise``."""
        # Find the regions; norms that several layers read are split first.
        self.regions = self._found_regions()
        if self.data is not None and self.options.method != "weights":
            self.splits = find_splits(self.prepared.graph_module, self.prepared.plan, self.regions)
        if self.splits:
            self.prepared = scaled_copy(self.prepared, (), self.splits)
            self.regions = self._found_regions()
        # Choose a method for each region.
        prepared = self.prepared
        schemes, with_data = weight_schemes(prepared), self.data is not None
        methods: dict[str, list[int]] = {"weights": [], "smooth": [], "products": []}
        for number, region in enumerate(self.regions):
            choice = choice_for(region, self.options.method, schemes, with_data=with_data)
            self.outcomes[number] = choice.reason
            if choice.method:
                methods[choice.method].append(number)
        # Find the factors, and keep those that lower the noise.
        chosen = sorted(number for numbers in methods.values() for number in numbers)
        options = self.options
        choosing = FactorChoice(prepared, self.regions, methods, options.iterations, options.headroom)
        found = choosing.run(self._watched)
        self.factors = {n: factors for n, factors in found.items() if bool(((factors - 1).abs() > UNCHANGED).any())}
        for number in chosen:
            self.outcomes[number] = "used, not checked: no data" if number in self.factors else "all factors are 1"
        if self.data is not None and self.factors:
            self._keep_what_helps(self.data)

    def rows(self) -> tuple[EqualizedRegion, ...]:
        """Return the rows of the table, in the order of the graph."""
        return tuple(self._row(number, region) for number, region in enumerate(self.regions))

    def used(self) -> list[tuple[Region, Tensor]]:
        """Return the regions that are scaled, with their factors."""
        return [(self.regions[number], factors) for number, factors in self.factors.items()]

    def used_splits(self) -> list[Split]:
        """Return the norms that get a second one, since it is scaled."""
        scaled = {end.path for region, _ in self.used() for end in region.sources}
        return [split for split in self.splits if split.path in scaled]

    def _found_regions(self) -> tuple[Region, ...]:
        prepared = self.prepared
        return find_regions(
            prepared.graph_module, prepared.example_args, prepared.example_kwargs, with_data=self.data is not None
        )

    def _watched(self) -> Iterator[Mapping[str, Any]]:
        for bound in self.inputs:
            yield bound
            self.seen()

    def _keep_what_helps(self, data: Sequence[Batch]) -> None:
        """Leave out the factors of regions whose noise, with all factors in use, does not fall enough."""
        before, after = (self._noise(data, factors) for factors in ({}, self.factors))
        for number in list(self.factors):
            noise = before[number], after[number]
            self.noise[number] = noise
            if noise[1] <= noise[0] * (1 - self.options.keep_if) and noise[0] > 0:
                self.outcomes[number] = "used"
            else:
                change = noise[1] / noise[0] - 1 if noise[0] > 0 else math.inf
                self.outcomes[number] = f"left as it is: its noise changes by {change:+.0%}"
                del self.factors[number]

    def _noise(self, data: Sequence[Batch], factors: Mapping[int, Tensor]) -> dict[int, float]:
        """Return the noise of each region that has factors, in a model with ``factors``."""
        scaled = scaled_copy(self.prepared, [(self.regions[n], each) for n, each in factors.items()])
        simulated = simulation(scaled, data, self.seen)
        measured = {number: self.regions[number] for number in self.factors}
        noise = RegionNoise(simulated, self.prepared, measured, factors, self.regions)
        for bound in self.inputs:
            noise.add(bound)
            self.seen()
        return noise.results()

    def _row(self, number: int, region: Region) -> EqualizedRegion:
        factors = self.factors.get(number, torch.ones(0, dtype=torch.float64))
        before, after = self.noise.get(number, (None, None))
        return EqualizedRegion(
            sources=tuple(end.path for end in region.sources),
            sinks=tuple(end.path for end in region.sinks),
            channels=region.total,
            scaled=int(((factors - 1).abs() > UNCHANGED).sum()),
            largest=max([float(torch.maximum(factors, 1 / factors).max())] if factors.numel() else [1.0]),
            outcome=self.outcomes[number],
            before=before,
            after=after,
        )
