"""A block that learns roundings, biases and scales, and the values that it learns from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Generator
from torch.fx import Node

from fxquant.measure.runner import FloatRun
from fxquant.training.block_learning import BlockLearning, learn_block, mean_error
from fxquant.training.block_parts import BlockParts
from fxquant.training.block_run import Learnable, TwoRuns
from fxquant.training.block_table import LearnedBlock
from fxquant.training.block_values import OWNER, BlockValues, items_are_independent
from fxquant.training.blocks import Block
from fxquant.training.checkpoint import Learned


class LearningBlock(Learnable):
    """A block, what is learned of it, and the fewest bits that a value in it has.

    Args:
        block: The block.
        parts: What is learned of it.
        bits: The fewest bits of a value that it reads or rounds.
        learning: How it learns.
    """

    def __init__(self, block: Block, parts: BlockParts, bits: int, learning: BlockLearning) -> None:
        self.name, self.nodes = block.name, block.nodes
        self.block, self.parts, self.bits = block, parts, bits
        self.unchanged = False
        """It stays as it was, since its error did not fall."""
        self._learning = learning

    def state(self) -> Learned:
        return self.parts.state()

    def learn(
        self, runs: TwoRuns, places: range, generator: Generator, progress: Callable[[], object]
    ) -> tuple[float, float]:
        # What the block reads in both models, and what the float model gives behind it.
        drop = self._learning.drop_for(self.bits)
        values = self._values(runs, places, keep_exact=drop > 0)
        before = mean_error(self.block, {}, values, self._learning.batch)
        # It is learned, and kept if that has helped.
        with torch.enable_grad():
            learn_block(self.block, self.parts, values, drop, self._learning, generator, progress)
        after = mean_error(self.block, self.parts.learned(None), values, self._learning.batch)
        runs.memory.free(OWNER)
        squared = values.unit**2
        return squared * before, squared * after

    def finish(self, state: Mapping[str, Any]) -> LearnedBlock:
        """Let the simulation give what was learned, unless the block stays as it was."""
        parts, self.unchanged = self.parts, not state["after"] < state["before"]
        if not self.unchanged:
            parts.finish(state)
        return LearnedBlock(
            self.name,
            tuple(layer.root for layer in parts.layers.values()),
            parts.count(),
            len(parts.scales),
            state["before"],
            state["before"] if self.unchanged else state["after"],
            self.unchanged,
        )

    def _values(self, runs: TwoRuns, places: range, *, keep_exact: bool) -> BlockValues:
        read = self.block.read
        runs.advance(runs.exact, places.start)
        floats = [_only(runs.exact.values(batch), read) for batch in range(runs.batches)]
        targets = runs.targets(places.stop, self.name)
        runs.advance(runs.quantized, places.start)
        rounded = [_only(runs.quantized.values(batch), read) for batch in range(runs.batches)]
        run = FloatRun(runs.simulated, {})
        called = {node: _called_by(run, node) for node in self.nodes if node.op == "call_module"}
        by_items = items_are_independent(self.block, called, floats, targets)
        kept = floats if keep_exact else [{} for _ in floats]
        return BlockValues(self.block, rounded, kept, targets, by_items, runs.memory)


def _only(values: Mapping[Node, Any], read: tuple[Node, ...]) -> dict[Node, Any]:
    return {node: values[node] for node in read}


def _called_by(run: FloatRun, node: Node) -> Any:
    return lambda *args, **kwargs: run.call_module(node.target, args, kwargs)
