"""How far values lie from what they should be, summed up batch by batch: no values are kept."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fxquant.measure.noise import decibels


@dataclass(frozen=True, slots=True)
class Deviation:
    """How far one tensor of a quantized model lies from that of the float model, over all batches."""

    sqnr: float
    """Signal to noise in dB: 10·log10(Σ reference² / Σ (reference - other)²); inf without any noise, NaN without any
    values, or where all are 0 in both."""
    cosine: float
    """Cosine of the angle between the two, 1 where they point the same way; NaN where one of them is 0."""
    largest: float
    """Largest difference, in real units."""
    lost: float
    """Share of the signal that noise drowns, 0 to 1: of the whole, or, if that is more, of the average channel."""
    channel: int
    """The channel that loses most."""


@dataclass(slots=True)
class DeviationSums:
    """The sums behind a ``Deviation``, float64, one of each kind per channel.

    Values of the reference that are inf or NaN are left out; where the other has them, the noise is infinite.
    """

    signal: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    noise: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    peak: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    """Largest value of the reference, without its sign."""
    power: float = 0.0
    product: float = 0.0
    largest: float = 0.0

    def add(self, reference: Tensor, other: Tensor, axis: int) -> None:
        """Add the values of one batch.

        Args:
            reference: float, of any shape.
            other: float, of that shape.
            axis: Dimension that counts the channels.
        """
        exact, given = (_channels_first(x, axis) for x in (reference, other))
        usable = exact.isfinite()
        if not bool(usable.all()):
            exact, given = exact.where(usable, 0.0), given.where(usable, 0.0)
        if not exact.numel():
            return
        error = (exact - given).abs().nan_to_num(nan=math.inf, posinf=math.inf)
        self.signal = _sum(self.signal, exact.square().sum(1).cpu())
        self.noise = _sum(self.noise, error.square().sum(1).cpu())
        self.peak = _largest(self.peak, exact.abs().amax(1).cpu())
        self.power += float(given.square().sum())
        self.product += float((exact * given).sum())
        self.largest = max(self.largest, float(error.max()))

    @property
    def total_lost(self) -> float:
        """Noise over signal; inf where there is noise and no signal."""
        return _ratio(float(self.noise.sum()), float(self.signal.sum()))

    def result(self) -> Deviation:
        """What the sums come to."""
        signal, noise = float(self.signal.sum()), float(self.noise.sum())
        lengths = math.sqrt(signal) * math.sqrt(self.power)
        shares = torch.tensor(
            [min(1.0, _ratio(n, s)) for n, s in zip(self.noise.tolist(), self.signal.tolist(), strict=True)]
        )
        average = float(shares.mean()) if len(shares) else 0.0
        return Deviation(
            sqnr=decibels(signal, noise) if len(self.signal) else math.nan,
            cosine=self.product / lengths if lengths > 0 else math.nan,
            largest=self.largest,
            lost=max(min(1.0, self.total_lost), average),
            channel=int(shares.argmax()) if len(shares) else 0,
        )


def _ratio(noise: float, signal: float) -> float:
    if noise == 0:
        return 0.0
    return noise / signal if signal > 0 else math.inf


def _channels_first(x: Tensor, axis: int) -> Tensor:
    """float64 [C, all else]: squares of float32 values neither vanish nor overflow."""
    x = x.detach().double()
    return x.reshape(1, -1) if x.dim() == 0 else x.movedim(axis, 0).reshape(x.shape[axis], -1)


def _sum(total: Tensor, more: Tensor) -> Tensor:
    total, more = _as_long(total, more)
    return total + more


def _largest(total: Tensor, more: Tensor) -> Tensor:
    return torch.maximum(*_as_long(total, more))


def _as_long(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Both as long as the longer one: how many channels there are may depend on the batch."""
    size = max(len(a), len(b))
    return tuple(torch.nn.functional.pad(x, (0, size - len(x))) for x in (a, b))  # type: ignore[return-value]
