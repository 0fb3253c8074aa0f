"""Learns which values of one weight to round up, so that its unit gives what the float unit gives."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor

from fxquant.fake_quantize.adaround import AdaRoundFakeQuantize
from fxquant.training.rounding_steps import Learning, begin_softly, error_unit, finish_hard, take_steps
from fxquant.training.unit_samples import Samples

TURNS, ROWS_FOR_TURNS = 8, 8
"""How often, at the end, one value of each output channel may be rounded the other way; and on how many times the rows
of a step that is decided."""


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
    unit = error_unit(weight.numel(), before)
    begin_softly([rounding], generator)
    optimizer = torch.optim.Adam([rounding.V], lr=learning.learning_rate)

    def error(drawn: Any, share: float) -> Tensor:
        return unit * share * samples.loss(rounding(weight), drawn)

    def draw() -> list[Callable[[], Tensor]]:
        pieces = samples.pieces(samples.draw(learning.rows, generator), learning.parts)
        return [partial(error, *piece) for piece in pieces]

    take_steps(learning.iterations, optimizer, draw, [rounding], learning, progress)
    finish_hard([rounding])
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
