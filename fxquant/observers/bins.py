"""Histograms as the searches for a range read them: where bins lie, how many values each has, and what error a
quantization would make on them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fxquant.kernels.fake_quantize.histogram import window_of
from fxquant.observers.qparams import scale_and_zero_point
from fxquant.plan.spec import QScheme

_ROUNDING = 1e-6
"""Of a number of values: a product that is a whole number but for rounding is that number."""
_NARROWEST = 2.0**-10
"""Of the width of a bin: how narrow the outer ones can be, so that values that are all alike have a finite density."""
_ALIKE = 0.002
"""Part by which two costs may differ and still be taken for equal."""
_ELEMENTS = 1 << 18
"""Edges times candidates that are worked on at a time: what stays in the caches."""


@dataclass(frozen=True, eq=False)
class Bins:
    """Histograms of at least one value each, from the first bin that holds any to the last.

    ``...`` is the shape of their ranges: nothing for one histogram, [C] for those of many channels, which are searched
    together. A histogram of fewer bins than the longest has empty ones behind its last.
    """

    edges: Tensor
    """float64 [..., n + 1], ascending, ``width`` apart."""
    counts: Tensor
    """float64 [..., n], how many values lie between two edges. They are taken to be spread evenly there."""
    sizes: Tensor
    """int64 [...], how many bins a histogram has."""
    width: Tensor
    """float64 [...]."""
    low: Tensor
    """float64 [...], the smallest value."""
    high: Tensor
    """float64 [...], the largest value."""

    @classmethod
    def of(cls, counts: Tensor, low: Tensor, high: Tensor) -> Bins:
        """Build it from the state of ``fxquant::histogram``: int64 [..., bins], float32 [...] twice, on any device."""
        counts, low, high = counts.cpu(), low.cpu(), high.cpu()
        most = counts.shape[-1]
        window = window_of(low, high, most)
        filled = (counts != 0).to(torch.uint8)
        begin, end = filled.argmax(-1), most - filled.flip(-1).argmax(-1)
        index = torch.arange(int((end - begin).max()) + 1) + begin.unsqueeze(-1)
        held = counts.gather(-1, index[..., :-1].clamp(max=most - 1)).double()
        held = torch.where(index[..., :-1] < end.unsqueeze(-1), held, 0.0)
        edges = (index + window.first.unsqueeze(-1)).double() * window.width.unsqueeze(-1)
        return cls(edges, held, end - begin, window.width, low.double(), high.double())

    def within(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Return those ranges as float32 [..., K] tensors, none of which reaches beyond the values seen.

        An end may pass over the values beyond it, but not over 0, to which a quantization range reaches anyway.
        """
        lowest, highest = self.low.unsqueeze(-1), self.high.unsqueeze(-1)
        low = low.clamp(lowest, lowest.clamp(min=0.0)).float()
        high = high.clamp(highest.clamp(max=0.0), highest).float()
        # Where all values are on one side of 0, one end may have passed the other, which then goes with it.
        below = highest < 0
        return torch.where(below, low, torch.minimum(low, high)), torch.where(below, torch.maximum(low, high), high)

    def magnitudes(self) -> Bins:
        """Return the histogram of the absolute values: bins mirror each other at 0, so it is exact."""
        index = torch.round(self.edges[..., :-1] / self.width.unsqueeze(-1)).long()
        index = torch.where(index < 0, ~index, index)
        own = torch.arange(index.shape[-1]) < self.sizes.unsqueeze(-1)
        index = torch.where(own, index, 0)
        sizes = index.amax(-1) + 1
        counts = torch.zeros((*sizes.shape, int(sizes.max())), dtype=torch.float64).scatter_add_(-1, index, self.counts)
        edges = torch.arange(counts.shape[-1] + 1, dtype=torch.float64) * self.width.unsqueeze(-1)
        least_of_all = torch.maximum(self.low, -self.high).clamp(min=0.0)
        return Bins(edges, counts, sizes, self.width, least_of_all, torch.maximum(-self.low, self.high))

    def quantile(self, share: float) -> Tensor:
        """Return the value that a share, 0 to 1, of all does not exceed; at most ``width`` away from a value seen.

        float64 [...].
        """
        until = self.counts.cumsum(-1)
        wanted = share * until[..., -1:] - _ROUNDING
        index = torch.minimum((until < wanted).sum(-1), self.sizes - 1).unsqueeze(-1)
        part = 1 - (until.gather(-1, index) - wanted) / self.counts.gather(-1, index)
        value = self.edges.gather(-1, index).squeeze(-1) + part.squeeze(-1) * self.width
        return value.clamp(self.low, self.high)

    def errors(self, low: Tensor, high: Tensor, scheme: QScheme, eps: Tensor, power: float = 2.0) -> Tensor:
        """Return the error that quantization to each of several ranges would make.

        Args:
            low: float32 [..., K], lower end of each range.
            high: float32 [..., K], upper end.
            scheme: What kind of qparams ``choose_qparams`` chooses for a range.
            eps: float32 [1], the smallest scale.
            power: Of the distance between a value and what it becomes.

        Returns:
            float64 [..., K], the mean of ``abs(x - dequantize(quantize(x))) ** power``.
        """
        scales, zero_points = (each.view(-1, low.shape[-1]) for each in qparams(low, high, scheme, eps))
        edges, weights, sizes = self._weighted_edges
        if scales.numel() * edges.numel() <= _ELEMENTS and sizes.numel() == 1:  # one piece, which is all
            costs = _weighted_integral(edges, weights, scales, zero_points, scheme, power)
        else:
            costs = torch.empty_like(scales)
            for rows, candidates, longest in pieces(sizes, low.shape[-1]):
                scale, zero_point = scales[rows, candidates], zero_points[rows, candidates]
                costs[rows, candidates] = _weighted_integral(
                    edges[rows, :longest], weights[rows, :longest], scale, zero_point, scheme, power
                )
        errors = (costs * scales ** (power + 1)).view(low.shape) / self.counts.sum(-1, keepdim=True)
        # Rounding may go below 0; and where scales are so small that their number has no such power, nothing is left.
        return errors.clamp_(min=0).nan_to_num_(nan=math.inf)

    @cached_property
    def _weighted_edges(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the edges that an integral of the error is added up at, with their weights, and how many they are.

        With F the integral of the error up to an edge, a bin costs counts / width * (F(end) - F(begin)). Added up, each
        edge has the difference of the densities beside it as its weight, most often 0 where bins are empty. Those
        edges are left out. float64 [C, m] twice, of which the last have no weight, and int64 [C]. A search asks many
        times.
        """
        edges, density = (each.view(-1, each.shape[-1]) for each in self.spread())
        nothing = density.new_zeros(density.shape[0], 1)
        weights = torch.diff(density, prepend=nothing, append=nothing).neg_()
        used = weights != 0
        sizes = used.sum(-1)
        row, place = used.nonzero(as_tuple=True)[0], (used.cumsum(-1) - 1)[used]
        kept = edges.new_zeros(2, edges.shape[0], int(sizes.max()))
        kept[0, row, place], kept[1, row, place] = edges[used], weights[used]
        return kept[0], kept[1], sizes

    def spread(self) -> tuple[Tensor, Tensor]:
        """Return edges between which values are taken to be spread evenly, and how many values lie there per 1.0.

        float64 [..., n + 1] and [..., n]. The outer bins end at the smallest and at the largest value: a value that
        lies on the edge of a bin then costs the same on either side of it.
        """
        edges, narrowest, last = self.edges.clone(), _NARROWEST * self.width, self.sizes.unsqueeze(-1)
        edges[..., 0] = torch.minimum(torch.maximum(edges[..., 0], self.low), edges[..., 1] - narrowest)
        before, end = edges.gather(-1, last - 1), edges.gather(-1, last)
        end = torch.maximum(torch.minimum(end, self.high.unsqueeze(-1)), before + narrowest.unsqueeze(-1))
        edges.scatter_(-1, last, end)
        return edges, self.counts / edges.diff()


def least(costs: Tensor) -> Tensor:
    """Return index of the smallest of several costs [..., K], none negative; of equals the first. int64 [...].

    Costs within ``_ALIKE`` are equal: those of two ranges that mirror each other, say, between which otherwise the last
    bit of a single value would decide. That bit differs between machines.
    """
    return (costs <= costs.amin(-1, keepdim=True) * (1 + _ALIKE)).to(torch.uint8).argmax(-1)


def qparams(low: Tensor, high: Tensor, scheme: QScheme, eps: Tensor) -> tuple[Tensor, Tensor]:
    """Return scale and zero point of each of several ranges, as they would be chosen; float64, of their shape."""
    scale, zero_point = scale_and_zero_point(low, high, scheme, eps)
    return scale.double(), zero_point.double()


def pieces(sizes: Tensor, candidates: int) -> Iterator[tuple[Tensor, slice, int]]:
    """Divide histograms and candidates into what is worked on at a time: rows, candidates, and the most edges."""
    sizes, order = sizes.sort(descending=True)
    longest = sizes.tolist()
    begin = 0
    while begin < len(longest):
        at_once = max(1, _ELEMENTS // longest[begin])
        end = begin + max(1, at_once // candidates)
        for first in range(0, candidates, at_once):
            yield order[begin:end], slice(first, first + at_once), longest[begin]
        begin = end


def _weighted_integral(
    edges: Tensor, weights: Tensor, scale: Tensor, zero_point: Tensor, scheme: QScheme, power: float
) -> Tensor:
    """Integrate ``abs(t - round(t)) ** power`` up to each edge, in quantized units, and add up; float64 [C, K].

    A whole unit costs ``2 * 0.5 ** (power + 1) / (power + 1)``, what lies beside the nearest one
    ``distance ** (power + 1) / (power + 1)``. What is clipped is rounded to the last one. Most of a search is spent
    here, and most of that on memory: what is in place is written in place, and factors are multiplied by sums.

    Args:
        edges: float64 [C, m].
        weights: float64 [C, m].
        scale, zero_point: float64 [C, K], of each candidate.
        scheme, power: See ``Bins.errors``.
    """
    steps = edges.unsqueeze(1) / scale.unsqueeze(-1)
    steps += zero_point.unsqueeze(-1)
    nearest = steps.round().clamp_(scheme.quant_min, scheme.quant_max)
    steps -= nearest
    beside = (steps * steps).mul_(steps) if power == 2.0 else (steps.abs() ** (power + 1)).mul_(steps.sign())
    units, rests = (torch.matmul(each, weights.unsqueeze(-1)).squeeze(-1) for each in (nearest, beside))
    return (units * (2 * 0.5 ** (power + 1)) + rests) / (power + 1)
