"""Steps of Adam that learn roundings: those of one unit and those of a whole block are the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Generator, Tensor

from fxquant.distributed.shared_sums import shared_sum
from fxquant.errors import InputError
from fxquant.fake_quantize.adaround import AdaRoundFakeQuantize
from fxquant.training.flat_gradients import flat_gradients, flat_like, set_gradients

ERROR_PER_WEIGHT = 5e-5
"""What rounding to nearest costs a unit, for each of its weights, in the unit in which its error is counted.

So one factor of the regulariser serves units of any size, and values of any scale. On a small residual net with 2 bit
weights, from 1e-5 to 1e-4 gave the same accuracy; 1e-2, and the error as it is, 0.7 points less."""
INITIAL_NOISE = 0.01
"""Standard deviation of what is added to ``V`` at first: values that are all alike would stay so to the last step."""


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
    parts: int = 1
    """Each step adds up the gradients of so many parts of its rows: ranks that share work compute one each."""

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
        check_parts(self.parts, self.rows, "rows")
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
        return settings_text(self)


def settings_text(settings: Any) -> str:
    """Return the settings of a run, which tell whether a checkpoint is of the same one; earlier ones name no parts."""
    shown = [each.name for each in fields(settings) if each.name != "parts" or settings.parts > 1]
    return ", ".join(f"{name}={getattr(settings, name)}" for name in shown)


def _falls(beta: object) -> bool:
    match beta:
        case (int() | float() as first, int() | float() as last):
            return math.inf > first >= last > 0
    return False


def error_unit(weights: int, of_rounding: float) -> float:
    """Return the factor by which errors are multiplied, so that the regularizer pulls as hard in units of any size.

    Args:
        weights: How many are rounded.
        of_rounding: The error of rounding them to nearest.
    """
    return ERROR_PER_WEIGHT * weights / of_rounding if of_rounding > 0 else 1.0


def begin_softly(roundings: Sequence[AdaRoundFakeQuantize], generator: Generator) -> None:
    """Let weights lie between two steps, and draw what breaks ties: ``V`` that are all alike would stay so."""
    for rounding in roundings:
        rounding.set_soft_rounding(True)
        noise = torch.randn(rounding.V.shape, generator=generator, dtype=rounding.V.dtype).mul_(INITIAL_NOISE)
        rounding.V.data.add_(noise.to(rounding.V.device))


def finish_hard(roundings: Sequence[AdaRoundFakeQuantize]) -> None:
    """Let each weight be the step that its ``V`` says."""
    for rounding in roundings:
        rounding.V.grad = None
        rounding.set_soft_rounding(False)


def take_steps(
    count: int,
    optimizer: torch.optim.Optimizer,
    draw: Callable[[], Sequence[Callable[[], Tensor]]],
    roundings: Sequence[AdaRoundFakeQuantize],
    annealing: Learning,
    progress: Callable[[], object],
    after_step: Callable[[], object] = lambda: None,
) -> None:
    """Take steps on an error, with the regularizer that drives each rounding to up or down.

    Args:
        count: Of the steps.
        optimizer: Holds what is learned.
        draw: Draws, and returns what computes the error in the unit of ``error_unit``: in one part, or in several that
            are added up, and that ranks share.
        roundings: Those that are decided by the last step; none: the error alone counts.
        annealing: Says how hard the regularizer pulls at each step.
        progress: Called at the end of each step.
        after_step: Called after each step of the optimizer.

    Source:
        Nagel et al., arXiv:2004.10568, eq. 21-25.
    """
    learned = [each for group in optimizer.param_groups for each in group["params"]]
    for step in range(count):
        optimizer.zero_grad()
        parts = draw()
        exponent = annealing.exponent(step) if roundings else None

        def loss(index: int, parts: Any = parts, exponent: float | None = exponent) -> Tensor:
            error = parts[index]()
            if exponent is None or index:  # the regularizer is in the first part
                return error
            undecided = [(1 - (2 * each.rounding() - 1).abs().pow(exponent)).sum() for each in roundings]
            return error + annealing.regularization * torch.stack(undecided).sum()

        if len(parts) == 1:
            loss(0).backward()
        else:
            set_gradients(learned, _shared_gradients(learned, len(parts), loss))
        optimizer.step()
        after_step()
        progress()


def _shared_gradients(learned: Sequence[Tensor], count: int, loss: Callable[[int], Tensor]) -> Tensor:
    """Return the sum of the gradients of so many losses, each computed in one of the ranks that share work."""

    def gradients(index: int) -> Tensor:
        return flat_gradients(learned, torch.autograd.grad(loss(index), learned, allow_unused=True))

    return shared_sum("a step of learned rounding", count, gradients, flat_like(learned))


def check_parts(parts: object, most: int, name: str) -> None:
    """Refuse a number of parts that a step cannot have.

    Raises:
        InputError: it is no whole number, or more than there are items.
    """
    if not isinstance(parts, int) or isinstance(parts, bool) or not 1 <= parts <= most:
        raise InputError("parts is out of range", got=repr(parts), expected=f"a whole number, 1 to {name}={most}")
