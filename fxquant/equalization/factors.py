"""Chooses the factors by which weights on both sides of a region get ranges that are alike, channel by channel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from fxquant.errors import CalibrationError
from fxquant.graph.macs import TRANSPOSED
from fxquant.nn.folding import batch_norm_factor
from fxquant.plan.region import End, Region

LARGEST = 1000.0
"""Factors lie between one in this and this."""
DEAD = 1e-8
"""A channel with a weight range below that, on either side, keeps its scale."""
STEADY = 0.01
"""Factors that move by less than this part are final."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Between which the factors of a region lie: float64 [channels] each."""

    low: Tensor
    high: Tensor

    @staticmethod
    def usual(region: Region) -> Limits:
        """Return those of a region without clamps."""
        ones = torch.ones(region.channels, dtype=torch.float64)
        return Limits(ones / LARGEST, ones * LARGEST)


@dataclass(slots=True)
class _Matrix:
    """The largest magnitude of each pair of an output and an input channel: float64 [groups, outputs, inputs]."""

    magnitudes: Tensor
    rows: tuple[int, Tensor] | None
    """The number of the region that its output channels belong to, and the index of the factor of each."""
    columns: tuple[int, Tensor] | None

    def divide(self, region: int, factors: Tensor) -> None:
        """Scale what belongs to a region."""
        padded = torch.cat((factors, torch.ones(1, dtype=torch.float64)))
        groups = len(self.magnitudes)
        if self.rows is not None and self.rows[0] == region:
            self.magnitudes = self.magnitudes / padded[self.rows[1]].view(groups, -1, 1)
        if self.columns is not None and self.columns[0] == region:
            self.magnitudes = self.magnitudes * padded[self.columns[1]].view(groups, 1, -1)


class WeightRanges:
    """Holds the ranges of all weights, batch norms folded in, while factors are looked for.

    Args:
        gm: A prepared float graph.
        regions: Whose factors are looked for.

    Raises:
        CalibrationError: a weight, or the batch norm after it, holds values that are not finite.
    """

    def __init__(self, gm: GraphModule, regions: Sequence[Region]) -> None:
        self._regions = regions
        by_number = [(number, region) for number, region in enumerate(regions) if not region.products]
        columns = {end.path: (number, end) for number, region in by_number for end in region.sinks}
        rows = [(number, end) for number, region in by_number for end in region.sources]
        made = {end.behind or end.path for _, end in rows}
        self._matrices = [
            _matrix(gm, end.behind or end.path, (number, end), columns)
            for number, end in rows
            if end.kind == "rows" or end.behind
        ]
        self._matrices += [_matrix(gm, path, None, columns) for path in columns if path not in made]

    def of(self, region: int) -> tuple[Tensor, Tensor]:
        """Return the largest magnitude of each channel where it is made, and where it is read; 0 where neither is."""
        count = self._regions[region].channels
        made, read = (torch.zeros(count + 1, dtype=torch.float64) for _ in range(2))
        for matrix in self._matrices:
            if matrix.rows is not None and matrix.rows[0] == region:
                made.scatter_reduce_(0, _at(matrix.rows[1], count), matrix.magnitudes.amax(2).flatten(), "amax")
            if matrix.columns is not None and matrix.columns[0] == region:
                read.scatter_reduce_(0, _at(matrix.columns[1], count), matrix.magnitudes.amax(1).flatten(), "amax")
        return made[:-1], read[:-1]

    def divide(self, region: int, factors: Tensor) -> None:
        """Scale the weights of a region."""
        for matrix in self._matrices:
            matrix.divide(region, factors)


def _at(factors: Tensor, count: int) -> Tensor:
    """Let channels that keep their scale count after all others."""
    return torch.where(factors < 0, count, factors)


def _matrix(
    gm: GraphModule, path: str, rows: tuple[int, End] | None, columns: Mapping[str, tuple[int, End]]
) -> _Matrix:
    layer: Any = gm.get_submodule(path)
    magnitudes = magnitudes_of(layer)
    if rows is not None and rows[1].kind == "norm":
        norm: Any = gm.get_submodule(rows[1].path)
        if norm.running_var is not None:
            factor = batch_norm_factor(norm.weight.detach(), norm.running_var, norm.eps).abs().cpu()
            magnitudes = magnitudes * factor.view(len(magnitudes), -1, 1)
    if not bool(magnitudes.isfinite().all()):
        raise CalibrationError(
            "a weight holds values that are not finite",
            at=path,
            got=f"{int((~magnitudes.isfinite()).sum())} pairs of channels with inf or NaN",
            expected="finite weights; with a batch norm folded in, finite statistics too",
            hint=f"look at {path}.weight and at the batch norm behind it",
        )
    return _Matrix(magnitudes, _indices(rows), _indices(columns.get(path)))


def _indices(end: tuple[int, End] | None) -> tuple[int, Tensor] | None:
    return None if end is None else (end[0], torch.tensor(end[1].factors))


def magnitudes_of(layer: Any) -> Tensor:
    """Return the largest magnitude of each pair of channels: float64 [groups, outputs, inputs]."""
    weight = layer.weight.detach().double().abs().cpu()
    if isinstance(layer, nn.Linear):
        return torch.as_tensor(weight)[None]
    pairs = weight.flatten(2).amax(2)
    by_group = pairs.view(layer.groups, -1, pairs.shape[1])
    return by_group.transpose(1, 2) if isinstance(layer, TRANSPOSED) else by_group


def weight_factors(ranges: WeightRanges, regions: Mapping[int, Limits], iterations: int) -> dict[int, Tensor]:
    """Return the factors by which rows and columns get the same ranges, float64 [channels] of each region.

    ``s = sqrt(r_made / r_read)``, region after region, until no factor moves any more: layers lie between two regions.

    Args:
        ranges: Of all weights. They are those of the scaled weights afterwards.
        regions: Number of a region -> the limits of its factors. Others keep their scale.
        iterations: Rounds over all regions, at most.

    Source:
        Nagel et al., arXiv:1906.04721, eq. 11.
    """
    factors = {number: torch.ones_like(limits.low) for number, limits in regions.items()}
    for _ in range(iterations):
        moved = 0.0
        for number, limits in regions.items():
            made, read = ranges.of(number)
            alive = (made > DEAD) & (read > DEAD)
            wanted = factors[number] * torch.where(alive, (made / read).sqrt(), 1.0)
            wanted = torch.where(alive, wanted.maximum(limits.low).minimum(limits.high), factors[number])
            step = wanted / factors[number]
            ranges.divide(number, step)
            factors[number] = wanted
            moved = max(moved, float((step - 1).abs().max()))
        if moved < STEADY:
            break
    return factors
