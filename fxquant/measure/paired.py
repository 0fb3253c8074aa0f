"""Compares two models on the same items: the mean difference, with an interval that counts what differs alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

TWO_VALUES = 2


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """The mean of the first model's values less those of the second, over the same items."""

    difference: float
    low: float
    """The lower end of the interval; -inf where one item alone was compared."""
    high: float
    """The upper end; inf likewise."""
    items: int
    differing: int
    """Items on which the two models do not have the same value."""

    def items_needed(self, value: float) -> float:
        """Estimate how many items would tell whether the difference is above or below a value; inf: no number would."""
        half, away = (self.high - self.low) / 2, abs(self.difference - value)
        return math.inf if away == 0 or half == math.inf else self.items * (half / away) ** 2


def paired_difference(
    first: Sequence[float], second: Sequence[float], confidence: float = 0.95, weights: Sequence[float] | None = None
) -> PairedDifference:
    """Compare the values of two models on the same items.

    Where all values are one of two, as right and wrong answers are, the interval is that of a difference of paired
    shares, the counterpart of McNemar's test; else that of a paired mean difference, by Student's t.

    Args:
        first: A value for each item.
        second: The same of the other model.
        confidence: Of the interval, above 0 and below 1.
        weights: Of items that are batches: their sizes. None: all count alike.

    Source:
        McNemar, "Note on the sampling error of the difference between correlated proportions", Psychometrika 12 (1947);
        the interval with half a pair added to each cell: Agresti and Min, Statistics in Medicine 24 (2005), 729-740.
    """
    count = len(first)
    differences = [a - b for a, b in zip(first, second, strict=True)]
    differing = sum(each != 0 for each in differences)
    share = [1 / count] * count if weights is None else [weight / math.fsum(weights) for weight in weights]
    mean = math.fsum(d * w for d, w in zip(differences, share, strict=True))
    values = {*first, *second}
    if weights is None and len(values) <= TWO_VALUES:
        unit = max(values) - min(values) or abs(max(values)) or 1.0  # all right: a wrong one would be 0
        center, half = _of_answers(differences, unit, confidence)
        return PairedDifference(mean, min(mean, center - half), max(mean, center + half), count, differing)
    if count < 2:
        return PairedDifference(mean, -math.inf, math.inf, count, differing)
    variance = math.fsum((w * (d - mean)) ** 2 for d, w in zip(differences, share, strict=True)) * count / (count - 1)
    half = student_quantile(confidence, count - 1) * math.sqrt(variance)
    return PairedDifference(mean, mean - half, mean + half, count, differing)


def _of_answers(differences: Sequence[float], unit: float, confidence: float) -> tuple[float, float]:
    """Return the middle and half the width of the interval, where each difference is -unit, 0 or unit."""
    more, less = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    count = len(differences) + 2
    net, differing = more - less, more + less + 1
    spread = math.sqrt(max(0.0, differing - net**2 / count)) / count
    return unit * net / count, unit * NormalDist().inv_cdf((1 + confidence) / 2) * spread


def student_quantile(confidence: float, freedom: int) -> float:
    """Return the half width of a two-sided interval of Student's t, in standard errors.

    Exact for 1 and 2 degrees of freedom, else by the expansion around the normal quantile, to about 1 %.

    Source:
        Abramowitz and Stegun, "Handbook of Mathematical Functions", 26.7.5.
    """
    p = (1 + confidence) / 2
    if freedom == 1:
        return math.tan(math.pi * (p - 0.5))
    if freedom == 2:
        return (2 * p - 1) * math.sqrt(2 / (4 * p * (1 - p)))
    z = NormalDist().inv_cdf(p)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / freedom**power for power, term in enumerate(terms, 1))
