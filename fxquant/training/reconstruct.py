"""Learns which values of one weight to round up, so that its unit gives what the float unit gives."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Generator, Tensor

from fxquant.errors import InputError
from fxquant.fake_quantize.adaround import AdaRoundFakeQuantize
from fxquant.training.unit_samples import Samples

ERROR_PER_WEIGHT = 5e-5
"""What rounding to nearest costs a unit, for each of its weights, in the unit in which its error is counted.

So one factor of the regulariser serves units of any size, and values of any scale. On a small residual net with 2 bit
weights, from 1e-5 to 1e-4 gave the same accuracy; 1e-2, and the error as it is, 0.7 points less."""


INITIAL_NOISE = 0.01
"""Standard deviation of what is added to ``V`` at first: values that are all alike would stay so to the last step."""
TURNS, ROWS_FOR_TURNS = 8, 8
"""How often, at the end, one value of each output channel may be rounded the other way; and on how many times the rows
of a step that is decided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """Holds the settings with which rounding is learned.

    Raises:
        InputError: a number is out of range.
    """

    iterations: int = 1000
    """Steps of Adam for each unit."""
    rows: int = 1024
    """Outputs of a unit that each step looks at."""
    learning_rate: float = 0.05
    regularization: float = 0.01
    """What the regulariser is multiplied by: lambda of eq. 21."""
    beta: tuple[float, float] = (20.0, 2.0)
    """First and last exponent of the regulariser, which pulls harder the lower it is: eq. 24."""
    warmup: float = 0.2
    """Part of the steps before the regulariser pulls at all."""

    def __post_init__(self) -> None:
        bounds = {"iterations": 1, "rows": 1, "learning_rate": 0, "regularization": 0, "warmup": 0}
        for name, least in bounds.items():
            value = getattr(self, name)
            whole = name in ("iterations", "rows")
            if not isinstance(value, int if whole else (int, float)) or not least <= value < math.inf:
                kind = "a whole number" if whole else "a number"
                raise InputError(f"{name} is out of range", got=repr(value), expected=f"{kind} from {least} on")
        if self.warmup > 1:
            raise InputError("warmup is out of range", got=self.warmup, expected="a part of the steps, 0 to 1")
        if not _falls(self.beta):
            raise InputError("beta does not fall", got=repr(self.beta), expected="(first, last), first >= last > 0")

    def exponent(self, step: int) -> float | None:
        """Return the exponent of the regulariser at a step: it falls from the first to the last; None before that."""
        start = self.warmup * self.iterations
        if step < start:
            return None
        first, last = self.beta
        part = (step - start) / max(self.iterations - start, 1)
        return last + (first - last) * (1 + math.cos(math.pi * part)) / 2

    def __str__(self) -> str:
        return ", ".join(f"{each.name}={getattr(self, each.name)}" for each in fields(self))


def _falls(beta: object) -> bool:
    match beta:
        case (int() | float() as first, int() | float() as last):
            return math.inf > first >= last > 0
    return False


def learn(
    rounding: AdaRoundFakeQuantize,
    weight: Tensor,
    samples: Samples,
    learning: Learning,
    generator: Generator,
    progress: Callable[[], object],
    axis: int = 0,
) -> tuple[float, float]:
    """Set ``rounding.V``, which begins where it is.

    Args:
        rounding: Has qparams, and ``V``. It rounds hard afterwards.
        weight: The float weight.
        samples: What it learns from.
        learning: How.
        generator: Draws from the samples.
        progress: Called after each step.
        axis: Dimension of the weight that counts the output channels.

    Returns:
        The error of the unit with what ``V`` said at first, and says now. That is never more: what does not lower the
        error is not kept.

    Source:
        arXiv:2004.10568, eq. 21-25.
    """
    squared_unit = samples.unit**2
    rounding.set_soft_rounding(False)
    at_first = rounding.V.detach().clone()
    before = samples.mean_loss(rounding(weight))
    unit = ERROR_PER_WEIGHT * weight.numel() / before if before > 0 else 1.0
    rounding.set_soft_rounding(True)
    noise = torch.randn(rounding.V.shape, generator=generator, dtype=rounding.V.dtype).mul_(INITIAL_NOISE)
    rounding.V.data.add_(noise.to(rounding.V.device))
    optimizer = torch.optim.Adam([rounding.V], lr=learning.learning_rate)
    for step in range(learning.iterations):
        optimizer.zero_grad()
        loss = unit * samples.loss(rounding(weight), samples.draw(learning.rows, generator))
        exponent = learning.exponent(step)
        if exponent is not None:
            undecided = 1 - (2 * rounding.rounding() - 1).abs().pow(exponent)
            loss = loss + learning.regularization * undecided.sum()
        loss.backward()
        optimizer.step()
        progress()
    rounding.V.grad = None
    rounding.set_soft_rounding(False)
    turn_single_values(rounding, weight, samples, samples.draw(ROWS_FOR_TURNS * learning.rows, generator), axis)
    after = samples.mean_loss(rounding(weight))
    if not after <= before:
        rounding.V.data.copy_(at_first)
        after = before
    return squared_unit * before, squared_unit * after


def turn_single_values(rounding: AdaRoundFakeQuantize, weight: Tensor, samples: Samples, drawn: Any, axis: int) -> None:
    """Round single values the other way while that lowers the error: of each output channel one at a time.

    The squared error of a layer is a sum over output channels, each quadratic in its weights: what a step costs is the
    mean of the slopes at its ends, times the step. Slopes alone cannot tell weights apart that are alike.
    """
    for _ in range(TURNS):
        now, turned = rounding(weight).detach(), _turned(rounding, weight)
        step = (turned - now).movedim(axis, 0).flatten(1)
        slope = _slope(samples, now, drawn).movedim(axis, 0).flatten(1)
        best = (slope * step).argmin(1, keepdim=True)
        one = torch.zeros_like(step, dtype=torch.bool).scatter_(1, best, True)
        chosen = _back(one, now, axis)
        after = _slope(samples, torch.where(chosen, turned, now), drawn).movedim(axis, 0).flatten(1)
        cost = ((slope + after) / 2 * step).gather(1, best)
        better = _back(one & (cost < 0), now, axis)
        if not bool(better.any()):
            return
        other = torch.where(rounding.V >= 0, -1.0, 1.0).to(rounding.V)
        rounding.V.data.copy_(torch.where(better, other, rounding.V))


def _turned(rounding: AdaRoundFakeQuantize, weight: Tensor) -> Tensor:
    """Return the weight with every value rounded the other way, as far as the range reaches."""
    kept = rounding.V.detach().clone()
    rounding.V.data.copy_(torch.where(kept >= 0, -1.0, 1.0))
    turned = rounding(weight).detach()
    rounding.V.data.copy_(kept)
    return turned


def _slope(samples: Samples, weight: Tensor, drawn: Any) -> Tensor:
    given = weight.detach().requires_grad_()
    return torch.autograd.grad(samples.loss(given, drawn), given)[0]


def _back(rows: Tensor, like: Tensor, axis: int) -> Tensor:
    """From [channels, all else] to the shape of the weight."""
    first = like.movedim(axis, 0)
    return rows.view(first.shape).movedim(0, axis)
