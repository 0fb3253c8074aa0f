"""Mean and variance of each channel of a value, side by side in the float and in the quantized model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Correction:
    """What turns the statistics of the quantized model into those of the float model: ``y * factor + shift``."""

    factor: Tensor
    """float64 [C]; 1 where the error does not fall by it."""
    shift: Tensor
    """float64 [C]."""
    before: float
    """Squared error over the squares of the float model's values, all channels, without the correction."""
    after: float
    """The same with it."""


class ChannelStatistics:
    """Averages over all dimensions but one, and over all calls: means, variances and covariances, float64 [C].

    Args:
        axis: The dimension that counts the channels; negative.
    """

    def __init__(self, axis: int) -> None:
        self._axis = axis
        self.count = 0
        self._means = torch.zeros(2, 1, dtype=torch.float64)
        self._moments = torch.zeros(3, 1, dtype=torch.float64)

    def add(self, exact: Tensor, quantized: Tensor) -> None:
        """Take one batch into account: values of the float and of the quantized model, of one shape."""
        if not exact.numel():
            return
        x, y = (
            each.movedim(self._axis, -1).reshape(-1, each.shape[self._axis]).double() for each in (exact, quantized)
        )
        means = torch.stack([x.mean(0), y.mean(0)])
        x, y = x - means[0], y - means[1]
        moments = torch.stack([x.square().sum(0), y.square().sum(0), (x * y).sum(0)])
        if not self.count:
            self._means, self._moments, self.count = means, moments, len(x)
            return
        total = self.count + len(x)
        apart = means - self._means  # what lies between the two means is part of the variance of both batches together
        between = torch.stack([apart[0] * apart[0], apart[1] * apart[1], apart[0] * apart[1]])
        self._moments = self._moments + moments + between * (self.count * len(x) / total)
        self._means, self.count = self._means + apart * (len(x) / total), total

    def correction(self, *, scales: bool, shifts: bool) -> Correction:
        """Return what makes means and variances those of the float model.

        Args:
            scales: Whether each channel can be scaled.
            shifts: Whether something may be added. If not, it is the mean square that is made equal.

        Raises:
            ValueError: nothing was seen.
        """
        if not self.count:
            raise ValueError("no values were seen")
        squares, products = self.count * self._means.square(), self.count * self._means[0] * self._means[1]
        exact, quantized, both = self._moments
        if not shifts:
            exact, quantized, both = exact + squares[0], quantized + squares[1], both + products
        known = (exact > 0) & (quantized > 0)
        factor = torch.where(known, (exact / quantized.clamp(min=torch.finfo(torch.float64).tiny)).sqrt(), 1.0)
        plain = exact + quantized - 2 * both
        scaled = exact + factor.square() * quantized - 2 * factor * both
        factor = torch.where((scaled < plain) & factor.isfinite() & torch.tensor(scales), factor, 1.0)
        after = exact + factor.square() * quantized - 2 * factor * both
        shift = self._means[0] - factor * self._means[1] if shifts else torch.zeros_like(factor)
        before = plain + (self.count * (self._means[0] - self._means[1]).square() if shifts else 0)
        signal = float(self._moments[0].sum() + squares[0].sum())
        ends = (float(error.sum().clamp(min=0)) / signal if signal > 0 else 0.0 for error in (before, after))
        return Correction(factor, shift, *ends)
