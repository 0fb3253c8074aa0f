"""What is noted of a unit's result while batches run: how much of it its grid cuts off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fxquant.plan.spec import QParams


@dataclass(slots=True)
class ResultFacts:
    """Sums over the values that a unit should give."""

    values: int = 0
    clipped: int = 0
    """Values beyond the ends of the grid."""
    clipping_noise: float = 0.0
    """Sum of the squares of what is cut off."""

    def look(self, expected: Any, qparams: QParams | None) -> None:
        """Count the values of one batch."""
        if qparams is None or not isinstance(expected, Tensor) or qparams.scale.numel() != 1:
            return
        low, high = ends(qparams)
        cut = (expected - expected.clamp(low, high)).abs()
        self.values += expected.numel()
        self.clipped += int((cut > qparams.scale.to(cut.device) / 2).sum())
        self.clipping_noise += float(cut.double().square().sum())

    @property
    def share(self) -> float:
        """Of the values that are clipped, 0 to 1."""
        return self.clipped / max(self.values, 1)


def ends(qparams: QParams) -> tuple[float, float]:
    """The smallest and the largest real number of a grid per tensor."""
    scale, zero_point = float(qparams.scale), float(qparams.zero_point)
    return (qparams.scheme.quant_min - zero_point) * scale, (qparams.scheme.quant_max - zero_point) * scale
