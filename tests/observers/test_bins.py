"""Bins: errors against brute force in float64 over values that are spread evenly within each bin."""

from __future__ import annotations

import pytest
import torch

from fxquant.kernels import histogram
from fxquant.observers import choose_qparams
from fxquant.observers.bins import Bins
from fxquant.plan.spec import QScheme

SAMPLES = 64
"""Values in each bin, evenly spread, in the outer ones as far as the smallest and the largest value."""
SUM_FOR_INTEGRAL = 2e-3
"""Relative difference between the integral over a bin and the mean of that many values."""


def bins_of(x: torch.Tensor, bins: int) -> Bins:
    state = torch.zeros(bins, dtype=torch.int64), torch.tensor(torch.inf), torch.tensor(-torch.inf)
    return Bins.of(*histogram(x, *state)[:3])


def evenly_spread(bins: Bins) -> tuple[torch.Tensor, torch.Tensor]:
    """Values, and how much each counts."""
    edges = bins.edges.clamp(bins.low, bins.high)
    offsets = (torch.arange(SAMPLES, dtype=torch.float64) + 0.5) / SAMPLES * edges.diff()[:, None]
    values = edges[:-1, None] + offsets
    return values.flatten(), (bins.counts[:, None] / SAMPLES).expand_as(values).flatten()


@pytest.mark.parametrize("power", [1.0, 2.0, 2.4])
@pytest.mark.parametrize(
    "scheme",
    [QScheme(signed=False), QScheme(bits=4, symmetric=True), QScheme(bits=2, signed=False), QScheme(bits=3)],
    ids=str,
)
def test_errors_are_integrals(power, scheme):
    torch.manual_seed(0)
    for x in (torch.randn(5000), torch.randn(5000).relu() + 1, -torch.rand(50) - 1):
        bins = bins_of(x, 256)
        values, weights = evenly_spread(bins)
        low, high = bins.within(
            bins.low * torch.tensor([1.0, 0.7, 0.2, 1.0]), bins.high * torch.tensor([1.0, 0.7, 1.0, 0.3])
        )
        eps = torch.tensor([1e-7])
        for index, error in enumerate(bins.errors(low, high, scheme, eps, power).tolist()):
            qparams = choose_qparams(low[index], high[index], scheme, eps)
            scale, zero_point = qparams.scale.double(), qparams.zero_point.double()
            q = (torch.round(values / scale) + zero_point).clamp(scheme.quant_min, scheme.quant_max)
            distance = ((q - zero_point) * scale - values).abs() ** power
            assert error == pytest.approx(float((distance * weights).sum() / weights.sum()), rel=SUM_FOR_INTEGRAL)


def test_only_filled_bins_are_kept():
    bins = bins_of(torch.tensor([-1.5, 2.0, 2.25]), 17)
    assert bins.width == 0.25
    assert (bins.edges[0].item(), bins.edges[-1].item()) == (-1.75, 2.5)
    assert (bins.low, bins.high, bins.counts.sum().item()) == (-1.5, 2.25, 3.0)
    magnitudes = bins.magnitudes()
    assert (magnitudes.edges[0].item(), magnitudes.low, magnitudes.high) == (0.0, 0.0, 2.25)
    assert magnitudes.counts.nonzero().flatten().tolist() == [6, 8, 9]


def test_ranges_stay_within_the_values_seen():
    ends = torch.tensor([-9.0, -0.5, 0.0, 0.5, 9.0], dtype=torch.float64)
    for values in ([-1.0, 2.0], [1.0, 2.0], [-2.0, -1.0], [0.0, 0.0]):
        bins = bins_of(torch.tensor(values), 16)
        low, high = bins.within(*torch.cartesian_prod(ends, ends).unbind(-1))
        assert (low <= high).all()
        assert (low >= min(values[0], 0)).all()
        assert (high <= max(values[1], 0)).all()
