"""What blocks learn from: inputs of both models, and what the float model gives; whole batches, or items of any."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor
from torch.fx import Node

from fxquant.measure.runner import run_nodes
from fxquant.training.blocks import Block
from fxquant.training.resumable_run import Memory

OWNER = "block"
"""Owner of the values in ``Memory``."""
CLOSE = 1e-3
"""Part of the largest value by which items that run alone may differ from what they give among others."""

Values = Mapping[Node, Any]


@dataclass(frozen=True, slots=True)
class Drawn:
    """Some items of the data, or a batch of it."""

    quantized: Values
    """What the block reads in the quantized model."""
    exact: Values
    """The same in the float model; empty where nobody asks for it."""
    target: Tensor
    """What the float model gives behind the block."""

    def pieces(self, count: int) -> list[Drawn]:
        """Return the items in so many pieces, each as they follow one another; fewer where there are fewer items."""
        if count == 1:
            return [self]
        found = []
        for places in torch.arange(len(self.target)).chunk(count):
            part = slice(int(places[0]), int(places[-1]) + 1)
            quantized, exact = (
                {node: value if node.op == "get_attr" else value[part] for node, value in values.items()}
                for values in (self.quantized, self.exact)
            )
            found.append(Drawn(quantized, exact, self.target[part]))
        return found


class BlockValues:
    """The values of one block, over all data.

    Where each item of a batch is computed by itself, items of all batches are drawn; else batches as they came.

    Args:
        block: The block.
        quantized, exact: Of each batch, what the block reads, in the quantized and in the float model.
        targets: Of each batch, what the float model gives.
        by_items: Whether items may be drawn. ``items_are_independent`` tells.
        memory: Holds the values, for the owner ``"block"``.
    """

    def __init__(
        self,
        block: Block,
        quantized: Sequence[Values],
        exact: Sequence[Values],
        targets: Sequence[Tensor],
        by_items: bool,
        memory: Memory,
    ) -> None:
        largest = max((float(each.abs().amax().nan_to_num()) for each in targets if each.numel()), default=1.0)
        self.unit = 2.0 ** (math.frexp(largest)[1] - 1)
        """The power of two below the largest target: squares of errors that are counted in it fit float32."""
        self.by_items, self._end = by_items, block.end
        self._batches = [
            Drawn(q, e, target) for q, e, target in zip(quantized, exact, targets, strict=True) if target.numel()
        ]
        self._constant: dict[Node, Any] = {}
        self._stored: list[dict[Node, _Items]] = []
        if by_items:
            first = self._batches[0]
            self._constant = {node: value for node, value in first.quantized.items() if node.op == "get_attr"}
            self._stored = [
                {node: _Items([part[node] for part in parts], memory) for node in parts[0] if node.op != "get_attr"}
                for parts in ([b.quantized for b in self._batches], [b.exact for b in self._batches])
            ]
            self._stored.append({block.end: _Items([b.target for b in self._batches], memory)})
            self.items = self._stored[2][block.end].count
            self._batches = []

    def draw(self, items: int, generator: Generator) -> Drawn:
        """Return about so many items, chosen at random."""
        if not self.by_items:
            return self._batches[int(torch.randint(len(self._batches), (1,), generator=generator))]
        if items >= self.items:
            return self._at(torch.arange(self.items))
        return self._at(torch.randperm(self.items, generator=generator)[:items])

    def all(self, items: int) -> Iterator[Drawn]:
        """Yield everything, about so many items at a time."""
        if not self.by_items:
            yield from self._batches
            return
        for places in torch.arange(self.items).split(items):
            yield self._at(places)

    def _at(self, places: Tensor) -> Drawn:
        quantized, exact, target = ({node: each.at(places) for node, each in part.items()} for part in self._stored)
        return Drawn({**self._constant, **quantized}, {**self._constant, **exact} if exact else {}, target[self._end])


class _Items:
    """One value of all batches, item by item; images lie in memory as ``channels_last``, which convolutions prefer."""

    def __init__(self, parts: Sequence[Tensor], memory: Memory) -> None:
        self.count = sum(map(len, parts))
        self._is_image = parts[0].dim() == 4
        shape = parts[0].shape[1:]
        stored = (*shape[1:], shape[0]) if self._is_image else tuple(shape)
        self._device = parts[0].device
        self._values = memory.empty(OWNER, (self.count, *stored), parts[0].dtype)
        start = 0
        for part in parts:
            self._values[start : start + len(part)] = part.movedim(1, -1) if self._is_image else part
            start += len(part)

    def at(self, places: Tensor) -> Tensor:
        chosen = self._values.index_select(0, places).to(self._device)
        return chosen.movedim(-1, 1) if self._is_image else chosen


def items_are_independent(block: Block, run: Any, values: Sequence[Values], targets: Sequence[Tensor]) -> bool:
    """Tell whether items of any batches may be put together: dimension 0 counts them, and each is computed by itself.

    Args:
        block: The block.
        run: Gives what is called in the place of a node, for the float model: node -> function.
        values: Of each batch, what the block reads in the float model.
        targets: Of each batch, what the float model gives.
    """
    batches = [(batch, target) for batch, target in zip(values, targets, strict=True) if target.numel()]
    shapes = set()
    for batch, target in batches:
        read = [value for node, value in batch.items() if node.op != "get_attr"]
        if not read or not all(isinstance(value, Tensor) and value.dim() for value in (*read, target)):
            return False
        if any(len(value) != len(target) for value in read):
            return False
        shapes.add(tuple(value.shape[1:] for value in (*read, target)))
    if len(shapes) != 1:
        return False
    batch, target = batches[-1]
    alone = {node: value if node.op == "get_attr" else value[-1:] for node, value in batch.items()}
    try:
        with torch.no_grad():
            found = run_nodes(block.nodes, alone, run)
    except Exception:  # a shape that only whole batches have
        return False
    expected = target[-1:]
    if not isinstance(found, Tensor) or found.shape != expected.shape:
        return False
    return bool((found - expected).abs().amax() <= CLOSE * expected.abs().amax())
