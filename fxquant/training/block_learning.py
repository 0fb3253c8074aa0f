"""Learns one block: roundings, biases and scales together, so that the block gives what it gives in float."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor
from torch.fx import Node

from fxquant.errors import InputError
from fxquant.measure.runner import run_nodes
from fxquant.plan.spec import is_number
from fxquant.training.block_parts import BlockParts, Masks, mixed
from fxquant.training.block_values import BlockValues, Drawn
from fxquant.training.blocks import Block
from fxquant.training.rounding_steps import (
    Learning,
    begin_softly,
    check_parts,
    error_unit,
    finish_hard,
    settings_text,
    take_steps,
)

LAST_PART = 0.2
"""Part of the steps, at the end, in which weights are rounded hard, and scales and biases alone are learned."""
DROP = 0.5
"""Probability of QDrop, arXiv:2203.05740, section 4."""

_Part = tuple[Masks | None, dict[Node, Callable[..., Any]]]
"""What draws the values that are not rounded in a part of a step, and what is called in the place of nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockLearning:
    """Holds the settings with which blocks are learned.

    Raises:
        InputError: one is out of range.
    """

    iterations: int = 1000
    drop: float | str = "auto"
    steps: bool | str = "auto"
    batch: int = 16
    learning_rate: float | None = None
    step_rate: float | None = None
    bias_rate: float = 0.003
    parts: int = 1
    """Each step adds up the gradients of so many parts of its items: ranks that share work compute one each."""

    def __post_init__(self) -> None:
        for name in ("iterations", "batch"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InputError(f"{name} is out of range", got=repr(value), expected="a whole number from 1 on")
        for name in ("learning_rate", "step_rate", "bias_rate"):
            value = getattr(self, name)
            if value is None and name != "bias_rate":
                continue
            if not is_number(value) or not 0 <= value < math.inf:
                raise InputError(f"{name} is out of range", got=repr(value), expected="a number from 0 on")
        check_parts(self.parts, self.batch, "batch")
        if self.drop != "auto" and (not is_number(self.drop) or not 0 <= float(self.drop) < 1):
            raise InputError("drop is no probability", got=repr(self.drop), expected='"auto", or a number in [0, 1)')
        if self.steps != "auto" and not isinstance(self.steps, bool):
            raise InputError("steps is no answer", got=repr(self.steps), expected='"auto", True or False')

    def learns_scale(self, bits: int) -> bool:
        """Tell whether a scale of so many bits is learned."""
        return bits < 8 if self.steps == "auto" else bool(self.steps)

    def drop_for(self, bits: int) -> float:
        """Return the probability with which values are not rounded in a block, whose fewest bits these are."""
        if self.drop == "auto":
            return DROP if bits < 8 else 0.0
        return float(self.drop)

    def rates(self) -> tuple[float, float, float]:
        """Return the rates of roundings, scales and biases: fewer iterations take larger steps."""
        roundings = min(max(14 / self.iterations, 0.03), 0.3) if self.learning_rate is None else self.learning_rate
        scales = min(max(1.5 / self.iterations, 0.001), 0.02) if self.step_rate is None else self.step_rate
        return roundings, scales, self.bias_rate

    def __str__(self) -> str:
        return settings_text(self)


def learn_block(
    block: Block,
    parts: BlockParts,
    values: BlockValues,
    drop: float,
    learning: BlockLearning,
    generator: Generator,
    progress: Callable[[], object],
) -> None:
    """Set what ``parts`` holds. Weights are rounded hard afterwards.

    Args:
        block: The block.
        parts: What is learned of it.
        values: What it learns from.
        drop: Probability that a value is not rounded in a step.
        learning: How it learns.
        generator: Draws the items, what is dropped, and the first values of ``V``.
        progress: Called after each step.

    Source:
        Li et al., "BRECQ", arXiv:2102.05426, algorithm 1, without weights of errors; Wei et al., "QDrop",
        arXiv:2203.05740, eq. 8; roundings: arXiv:2004.10568, eq. 21-25; scales: arXiv:1902.08153, eq. 3.
    """
    # The unit in which errors are counted is that of rounded weights alone: activations would drown the regularizer.
    roundings = [layer.rounding for layer in parts.layers.values()]
    finish_hard(roundings)
    unit = error_unit(parts.count(), _error_of_weights(block, parts, values, learning.batch))
    begin_softly(roundings, generator)
    # First everything together, and weights are rounded hard at the end of it.
    decided = learning.iterations - round(LAST_PART * learning.iterations) if parts.layers else 0
    steps = _Steps(block, parts, values, drop, learning, generator, unit)
    steps.run(decided, progress, annealed=True)
    finish_hard(roundings)
    # Then scales and biases alone make up for what that has changed.
    center(block, parts, values, learning.batch)
    steps.run(learning.iterations - decided, progress, annealed=False)
    center(block, parts, values, learning.batch)


@dataclass(slots=True)
class _Steps:
    """Steps of Adam on a block, with what they need."""

    block: Block
    parts: BlockParts
    values: BlockValues
    drop: float
    learning: BlockLearning
    generator: Generator
    unit: float

    def run(self, count: int, progress: Callable[[], object], *, annealed: bool) -> None:
        """Take so many steps; with ``annealed`` of roundings too, which the regularizer decides by the last step."""
        found = _optimizer(self.parts, self.learning, count, roundings=annealed)
        if found is None:
            for _ in range(count):
                progress()
            return
        optimizer, schedule = found
        parts = [self._part(index) for index in range(self.learning.parts)]

        def draw() -> list[Callable[[], Tensor]]:
            drawn = self.values.draw(self.learning.batch, self.generator)
            pieces = drawn.pieces(self.learning.parts) if self.values.by_items else [drawn]
            shares = [piece.target.numel() / drawn.target.numel() for piece in pieces]
            return [partial(self._error, *each) for each in zip(pieces, parts, shares, strict=False)]

        def after_step() -> None:
            schedule.step()
            for scale in self.parts.scales:
                scale.hold()

        roundings = [layer.rounding for layer in self.parts.layers.values()] if annealed else []
        take_steps(count, optimizer, draw, roundings, Learning(iterations=max(count, 1)), progress, after_step)

    def _part(self, index: int) -> _Part:
        # Each part of a step draws for itself what is not rounded, so that a rank need not draw for the others.
        generator = self.generator
        if self.learning.parts > 1:
            generator = Generator().manual_seed(self.generator.initial_seed() + 1 + index)
        masks = Masks(self.drop, generator) if self.drop > 0 else None
        return masks, self.parts.learned(masks)

    def _error(self, drawn: Drawn, part: _Part, share: float) -> Tensor:
        masks, called = part
        read = mixed(drawn.quantized, drawn.exact, masks)
        error = _error(run_nodes(self.block.nodes, read, called), drawn.target, self.values.unit)
        return self.unit * share * error


def center(block: Block, parts: BlockParts, values: BlockValues, items: int) -> None:
    """Move the bias of the last layer so that the error of each channel has the mean 0, where that lowers the error."""
    layer = parts.last_layer(block.nodes)
    if layer is None or layer.shift is None or layer.bias is None:
        return
    axis = -1 if layer.weight.dim() == 2 else 1
    called, total, count = parts.learned(None), torch.zeros_like(layer.bias, dtype=torch.float64), 0
    with torch.no_grad():
        for drawn in values.all(items):
            error = drawn.target - run_nodes(block.nodes, drawn.quantized, called)
            if error.dim() < 2 or error.shape[axis] != len(total):
                return
            channels = error.movedim(axis, 0).flatten(1)
            total += channels.double().sum(1)
            count += channels.shape[1]
    kept, before = layer.shift.detach().clone(), mean_error(block, called, values, items)
    layer.shift.data.add_((total / max(count, 1) / layer.spread).to(layer.shift))
    if not mean_error(block, called, values, items) < before:
        layer.shift.data.copy_(kept)


def _optimizer(
    parts: BlockParts, learning: BlockLearning, count: int, *, roundings: bool
) -> tuple[torch.optim.Optimizer, Any] | None:
    """Make Adam with a rate for each kind; those of scales and biases fall along a cosine. None: nothing is learned."""
    of_roundings, of_scales, of_biases = learning.rates()
    kinds: list[tuple[list[Tensor], float, bool]] = [
        ([layer.rounding.V for layer in parts.layers.values()] if roundings else [], of_roundings, False),
        ([scale.factor for scale in parts.scales], of_scales, True),
        ([layer.shift for layer in parts.layers.values() if layer.shift is not None], of_biases, True),
    ]
    kinds = [kind for kind in kinds if kind[0]]
    if not kinds:
        return None
    optimizer = torch.optim.Adam([{"params": values, "lr": rate} for values, rate, _ in kinds])

    def rate(falls: bool) -> Callable[[int], float]:
        return lambda step: (1 + math.cos(math.pi * step / max(count, 1))) / 2 if falls else 1.0

    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, [rate(falls) for *_, falls in kinds])


def mean_error(block: Block, called: Mapping[Node, Callable[..., Any]], values: BlockValues, items: int) -> float:
    """Return the mean squared error of a block over all data, in squares of ``values.unit``.

    Args:
        block: The block.
        called: What is called in the place of its nodes.
        values: The data.
        items: How many run at a time.
    """
    found: list[tuple[float, int]] = []
    with torch.no_grad():
        for drawn in values.all(items):
            error = _error(run_nodes(block.nodes, drawn.quantized, called), drawn.target, values.unit)
            found.append((float(error) * drawn.target.numel(), drawn.target.numel()))
    return math.fsum(error for error, _ in found) / max(sum(count for _, count in found), 1)


def _error_of_weights(block: Block, parts: BlockParts, values: BlockValues, items: int) -> float:
    """Return what rounding the weights alone adds, on a part of the data; layers measure what they give on the way."""
    drawn = next(iter(values.all(2 * items)))
    with torch.no_grad():
        exact = run_nodes(block.nodes, drawn.quantized, parts.in_float())
        return float(_error(run_nodes(block.nodes, drawn.quantized, parts.weights_alone()), exact, values.unit))


def _error(y: Tensor, target: Tensor, unit: float) -> Tensor:
    """Return the mean squared error; float16 holds no such sum."""
    error = (y - target).to(torch.promote_types(target.dtype, torch.float32))
    return (error / unit).square().mean()
