"""EntropyObserver: the divergence of each range, by plain loops in float64."""

from __future__ import annotations

import math

import pytest
import torch

from fxquant.kernels import histogram
from fxquant.observers import EntropyObserver, choose_qparams
from fxquant.observers.bins import Bins
from fxquant.observers.entropy import MOST_CLIPPED, divergences
from fxquant.plan.spec import QScheme

EPS = torch.tensor([1e-7])


def bins_of(x: torch.Tensor, bins: int) -> Bins:
    state = torch.zeros(bins, dtype=torch.int64), torch.tensor(torch.inf), torch.tensor(-torch.inf)
    return Bins.of(*histogram(x, *state)[:3])


def divergence(bins: Bins, low: float, high: float, scheme: QScheme, whole: bool) -> float:
    qparams = choose_qparams(torch.tensor(low), torch.tensor(high), scheme, EPS)
    scale, zero_point = float(qparams.scale), int(qparams.zero_point)
    counts = bins.counts.tolist()
    edges = bins.edges.tolist()
    zero = round(-edges[0] / float(bins.width))
    if 0 <= zero < len(counts) and len(counts) > 1:
        beside = [counts[i] for i in (zero - 1, zero + 1) if 0 <= i < len(counts)]
        counts[zero] = min(counts[zero], max(*beside, 1.0))
    inside = [i for i, edge in enumerate(edges[1:]) if edge > low and (edges[i] < high or edges[i] <= low)]
    if not inside:
        return math.inf
    first, last = inside[0], inside[-1]
    piled = {i: counts[i] for i in inside}
    piled[first] += sum(counts[:first])
    piled[last] += sum(counts[last + 1 :])
    steps: dict[int, list[int]] = {}
    for i in inside:
        centre = (edges[i] + edges[i + 1]) / 2
        step = min(max(round(centre / scale + zero_point), scheme.quant_min), scheme.quant_max)
        steps.setdefault(step, []).append(i)
    kept = sum(counts[i] for i in inside)
    total = sum(counts)
    if kept < (1 - MOST_CLIPPED) * total or (scale < bins.width and not whole):
        return math.inf
    lost = 0.0
    for members in steps.values():
        filled = [i for i in members if piled[i] > 0]
        mass = sum(counts[i] for i in members)
        for i in filled:
            if mass == 0:
                return math.inf
            lost += piled[i] / total * math.log(piled[i] / total / (mass / len(filled) / kept))
    return lost


SCHEMES = (
    QScheme(bits=2, signed=False),
    QScheme(bits=4, signed=False),
    QScheme(bits=5, symmetric=True),
    QScheme(bits=8),
    QScheme(bits=16),
)


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_divergences_by_plain_loops(scheme):
    torch.manual_seed(0)
    for x in (torch.randn(3000), torch.randn(3000).relu(), torch.randn(500).exp(), torch.randn(500) + 6):
        bins = bins_of(x, 200)
        parts = torch.tensor([1.0, 0.9, 0.7, 0.5, 0.3, 0.1], dtype=torch.float64) * max(-bins.low, bins.high)
        low, high = bins.within(-parts, parts)
        found = divergences(bins, low, high, scheme, EPS).tolist()
        ends = zip(low.tolist(), high.tolist(), strict=True)
        assert found == pytest.approx([divergence(bins, *pair, scheme, i == 0) for i, pair in enumerate(ends)])


def test_the_smallest_divergence_is_chosen():
    torch.manual_seed(0)
    scheme = QScheme(bits=4, signed=False)
    for x in (torch.distributions.Laplace(0.0, 1.0).sample((20_000,)), torch.randn(5000).exp()):
        observer = EntropyObserver(256, scheme=scheme)
        observer(x)
        bins = bins_of(x, 256)
        parts = torch.tensor([k / 128 for k in range(1, 129)], dtype=torch.float64) * max(-bins.low, bins.high)
        ends = zip(*(each.tolist() for each in bins.within(-parts, parts)), strict=True)
        losses = {pair: divergence(bins, *pair, scheme, pair == (bins.low, bins.high)) for pair in ends}
        low, high = map(float, observer.chosen_range())
        assert losses[low, high] == pytest.approx(min(losses.values()))
        assert (low, high) != (bins.low, bins.high)


def test_values_far_from_0_are_not_clipped_away():
    for x in (torch.rand(1000) + 3, -torch.rand(1000) - 3):
        observer = EntropyObserver()
        observer(x)
        low, high = observer.chosen_range()
        clipped = (x < low) | (x > high)
        assert clipped.double().mean() <= MOST_CLIPPED + 0.01  # to a bin
