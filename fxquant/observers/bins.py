"""One histogram as the searches for a range read it: where its bins lie, how many values each has, and what error a
quantization would make on them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fxquant.kernels.fake_quantize.histogram import window_of
from fxquant.observers.qparams import choose_qparams
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
    """A histogram of at least one value; from the first bin that holds any to the last."""

    edges: Tensor
    """float64 [n + 1], ascending, ``width`` apart."""
    counts: Tensor
    """float64 [n], how many values lie between two edges. They are taken to be spread evenly there."""
    width: float
    low: float
    """The smallest value."""
    high: float
    """The largest value."""

    @classmethod
    def of(cls, counts: Tensor, low: Tensor, high: Tensor) -> Bins:
        """Build it from the state of ``fxquant::histogram``: int64 [bins], float32 [], float32 [], on any device."""
        counts, low, high = counts.cpu(), low.cpu(), high.cpu()
        window = window_of(low, high, counts.numel())
        filled = torch.nonzero(counts).flatten().tolist()
        begin, end = filled[0], filled[-1] + 1
        width = float(window.width)
        index = torch.arange(begin, end + 1, dtype=torch.float64) + int(window.first)
        return cls(index * width, counts[begin:end].double(), width, float(low), float(high))

    def within(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Return those ranges as float32 [K] tensors, none of which reaches beyond the values seen.

        An end may pass over the values beyond it, but not over 0, to which a quantization range reaches anyway.
        """
        low = low.clamp(min=self.low, max=max(self.low, 0.0)).float()
        high = high.clamp(min=min(self.high, 0.0), max=self.high).float()
        # Where all values are on one side of 0, one end may have passed the other, which then goes with it.
        return (low, torch.maximum(low, high)) if self.high < 0 else (torch.minimum(low, high), high)

    def magnitudes(self) -> Bins:
        """Return the histogram of the absolute values: bins mirror each other at 0, so it is exact."""
        index = torch.round(self.edges[:-1] / self.width).long()
        index = torch.where(index < 0, ~index, index)
        counts = torch.zeros(int(index.max()) + 1, dtype=torch.float64).scatter_add_(0, index, self.counts)
        edges = torch.arange(counts.numel() + 1, dtype=torch.float64) * self.width
        return Bins(edges, counts, self.width, max(self.low, -self.high, 0.0), max(-self.low, self.high))

    def quantile(self, share: float) -> float:
        """Return the value that a share, 0 to 1, of all does not exceed; at most ``width`` away from a value seen."""
        until = self.counts.cumsum(0)
        wanted = share * float(until[-1]) - _ROUNDING
        index = min(int((until < wanted).sum()), until.numel() - 1)
        part = 1 - (float(until[index]) - wanted) / float(self.counts[index])
        return min(max(float(self.edges[index]) + part * self.width, self.low), self.high)

    def errors(self, low: Tensor, high: Tensor, scheme: QScheme, eps: Tensor, power: float = 2.0) -> Tensor:
        """Return the error that quantization to each of several ranges would make.

        Args:
            low: float32 [K], lower end of each range.
            high: float32 [K], upper end.
            scheme: What kind of qparams ``choose_qparams`` chooses for a range.
            eps: float32 [1], the smallest scale.
            power: Of the distance between a value and what it becomes.

        Returns:
            float64 [K], the mean of ``abs(x - dequantize(quantize(x))) ** power``.
        """
        scales, zero_points = qparams(low, high, scheme, eps)
        # With F the integral of the error up to an edge, a bin costs counts / width * (F(end) - F(begin)). Added up,
        # each edge has the difference of the densities beside it as its weight, most often 0 where bins are empty.
        edges, density = self.spread()
        weights = torch.diff(density, prepend=torch.zeros(1), append=torch.zeros(1)).neg_()
        used = weights != 0
        edges, weights = edges[used], weights[used]
        chunks = max(1, _ELEMENTS // edges.numel())
        costs = [
            _integral(edges, scale, zero_point, scheme, power) @ weights
            for scale, zero_point in zip(scales.split(chunks), zero_points.split(chunks), strict=True)
        ]
        errors = torch.cat(costs) * scales ** (power + 1) / self.counts.sum()
        # Rounding may go below 0; and where scales are so small that their number has no such power, nothing is left.
        return errors.clamp_(min=0).nan_to_num_(nan=math.inf)

    def spread(self) -> tuple[Tensor, Tensor]:
        """Return edges between which values are taken to be spread evenly, and how many values lie there per 1.0.

        float64 [n + 1] and [n]. The outer bins end at the smallest and at the largest value: a value that lies on the
        edge of a bin then costs the same on either side of it.
        """
        edges, least = self.edges.clone(), _NARROWEST * self.width
        edges[0] = edges[0].clamp(min=self.low).clamp(max=float(edges[1]) - least)
        edges[-1] = edges[-1].clamp(max=self.high).clamp(min=float(edges[-2]) + least)
        return edges, self.counts / edges.diff()


def least(costs: Tensor) -> int:
    """Return index of the smallest of several costs, none negative; of equals the first.

    Costs within ``_ALIKE`` are equal: those of two ranges that mirror each other, say, between which otherwise the last
    bit of a single value would decide. That bit differs between machines.
    """
    return int((costs <= costs.min() * (1 + _ALIKE)).nonzero()[0])


def qparams(low: Tensor, high: Tensor, scheme: QScheme, eps: Tensor) -> tuple[Tensor, Tensor]:
    """Return scale and zero point of each of several ranges, as they would be chosen; float64 [K]."""
    qparams = choose_qparams(low, high, replace(scheme, axis=0, group_size=None), eps)
    return qparams.scale.double(), qparams.zero_point.double()


def _integral(edges: Tensor, scale: Tensor, zero_point: Tensor, scheme: QScheme, power: float) -> Tensor:
    """Integrate ``abs(t - round(t)) ** power`` up to each edge, in quantized units; float64 [K, edges].

    A whole unit costs ``2 * 0.5 ** (power + 1) / (power + 1)``, what lies beside the nearest one
    ``distance ** (power + 1) / (power + 1)``. What is clipped is rounded to the last one.
    """
    steps = edges / scale[:, None]
    steps += zero_point[:, None]
    nearest = steps.round().clamp_(scheme.quant_min, scheme.quant_max)
    steps -= nearest
    beside = steps * steps * steps if power == 2.0 else steps.abs() ** (power + 1) * steps.sign()
    return beside.div_(power + 1).add_(nearest, alpha=2 * 0.5 ** (power + 1) / (power + 1))
