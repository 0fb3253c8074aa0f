"""MSEObserver: the best common factor, by brute force over the values."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from fxquant.errors import SpecError
from fxquant.observers import MSEObserver, choose_qparams
from fxquant.plan.spec import QScheme
from tests.sampling import one_of

ABOVE_BRUTE_FORCE = 1.02
"""Times the smallest error among the same ranges: a histogram knows the values to a bin."""


def mean_error(x: torch.Tensor, low: float, high: float, scheme: QScheme, power: float) -> float:
    qparams = choose_qparams(torch.tensor(low), torch.tensor(high), scheme)
    scale, zero_point, x = qparams.scale.double(), qparams.zero_point.double(), x.double()
    q = (torch.round(x / scale) + zero_point).clamp(scheme.quant_min, scheme.quant_max)
    return float((((q - zero_point) * scale - x).abs() ** power).mean())


@pytest.mark.parametrize("power", [1.0, 2.0, 2.4, 4.0])
@pytest.mark.parametrize(
    "scheme",
    one_of(
        3,
        [
            QScheme(bits=2, symmetric=True),
            QScheme(bits=3, signed=False),
            QScheme(bits=4, symmetric=True),
            QScheme(signed=False),
            QScheme(bits=12),
            QScheme(bits=16, signed=False),
        ],
    ),
    ids=str,
)
def test_error_is_the_smallest_of_all_candidates(power, scheme):
    torch.manual_seed(0)
    normal = torch.randn(4000)
    for x in (normal, F.relu(normal), F.hardswish(3 * normal), (1.5 * normal).exp(), -F.relu6(6 * normal)):
        observer = MSEObserver(power, 50, scheme=scheme)
        observer(x)
        chosen = mean_error(x, *map(float, observer.chosen_range()), scheme, power)
        low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
        smallest = min(mean_error(x, low * k / 50, high * k / 50, scheme, power) for k in range(1, 51))
        assert chosen <= ABOVE_BRUTE_FORCE * smallest


def test_a_larger_power_clips_less():
    torch.manual_seed(0)
    x = torch.randn(10000)
    ends = []
    for power in (1.0, 2.0, 4.0, 8.0):
        observer = MSEObserver(power, bits=4)
        observer(x)
        ends.append(observer.chosen_range()[1].item())
    assert ends == sorted(ends)
    assert ends[0] < ends[-1]


def test_arguments_are_checked():
    with pytest.raises(SpecError, match=r"power is out of range\n  got:      0.5\n  expected: 1 to 8"):
        MSEObserver(0.5)
    with pytest.raises(SpecError, match=r"candidates is out of range\n  got:      0\n  expected: 1 to 10000"):
        MSEObserver(candidates=0)
