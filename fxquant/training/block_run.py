"""Learns block after block, in the order of the graph, each on what the quantized blocks before it give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor
from torch.fx import GraphModule, Node
from tqdm import tqdm

from fxquant.errors import CalibrationError
from fxquant.graph.interpreter import BoundInterpreter
from fxquant.measure.runner import FloatRun
from fxquant.training.block_learning import BlockLearning, learn_block, mean_error
from fxquant.training.block_parts import BlockParts
from fxquant.training.block_table import LearnedBlock, LearnedBlocks
from fxquant.training.block_values import OWNER, BlockValues, items_are_independent
from fxquant.training.blocks import Block
from fxquant.training.checkpoint import Checkpoint, Learned
from fxquant.training.resumable_run import Memory, ResumableRun
from fxquant.training.weighted_units import Left


@dataclass(slots=True)
class LearningBlock:
    """A block, what is learned of it, and the fewest bits that a value in it has."""

    block: Block
    parts: BlockParts
    bits: int
    unchanged: bool = False
    """It stays as it was, since its error did not fall."""


@dataclass(slots=True)
class BlockRun:
    """Learns one block after the other.

    Args:
        simulated: What ``convert(to="fake_quant")`` gave; it is changed: blocks give what was learned afterwards.
        order: Its nodes in an order in which those of each block stand side by side.
        blocks: In that order.
        inputs: Of each batch, by name.
        learning: How each block learns.
        seed: Of what each block draws.
        memory: Holds what blocks read.
        checkpoint: Holds what finished blocks learned.
    """

    simulated: GraphModule
    order: Sequence[Node]
    blocks: Sequence[LearningBlock]
    inputs: Sequence[Mapping[str, Any]]
    learning: BlockLearning
    seed: int
    memory: Memory
    checkpoint: Checkpoint | None

    def run(self, left: Sequence[Left], progress: bool) -> LearnedBlocks:
        """Return the table of the errors of each block, with the units that were ``left``; with a progress bar over all
        steps of all blocks."""
        self.simulated.requires_grad_(False)
        place = {node: index for index, node in enumerate(self.order)}
        last = max(place[each.block.end] for each in self.blocks)
        exact, quantized = (
            ResumableRun(kind(self.simulated, {}), self.order[: last + 1], self.inputs, self.memory)
            for kind in (FloatRun, BoundInterpreter)
        )
        rows = []
        total = len(self.blocks) * self.learning.iterations
        with tqdm(total=total, desc="reconstruct", unit="step", disable=not progress) as bar:
            for index, each in enumerate(self.blocks):
                bar.set_postfix_str(f"{each.block.name}, {index + 1} of {len(self.blocks)}")
                places = range(place[each.block.nodes[0]], place[each.block.end] + 1)
                rows.append(self._learned(index, each, places, exact, quantized, bar))
        return LearnedBlocks(tuple(rows), tuple(left))

    def _learned(
        self, index: int, each: LearningBlock, places: range, exact: ResumableRun, quantized: ResumableRun, bar: Any
    ) -> LearnedBlock:
        # What an earlier run has finished is taken from its file.
        like: Learned = {**each.parts.state(), "before": 0.0, "after": 0.0}
        found = None if self.checkpoint is None else self.checkpoint.load(index, like)
        if found is not None:
            if not bar.disable:
                bar.initial += self.learning.iterations  # the time left is that of what is learned here
            bar.update(self.learning.iterations)
            return self._finished(each, found)
        # What the block reads in both models, and what the float model gives behind it.
        drop = self.learning.drop_for(each.bits)
        values = self._values(each.block, places, exact, quantized, keep_exact=drop > 0)
        before = mean_error(each.block, {}, values, self.learning.batch)
        # It is learned, and kept if that has helped.
        generator = Generator().manual_seed((self.seed * 1_000_003 + index) % (1 << 63))
        with torch.enable_grad():
            learn_block(each.block, each.parts, values, drop, self.learning, generator, bar.update)
        after = mean_error(each.block, each.parts.learned(None), values, self.learning.batch)
        self.memory.free(OWNER)
        squared = values.unit**2
        state: Learned = {**each.parts.state(), "before": squared * before, "after": squared * after}
        if self.checkpoint is not None:
            self.checkpoint.save(index, state)
        return self._finished(each, state)

    def _values(
        self, block: Block, places: range, exact: ResumableRun, quantized: ResumableRun, *, keep_exact: bool
    ) -> BlockValues:
        read = block.read
        floats, rounded, targets = [], [], []
        for batch in range(len(self.inputs)):
            exact.advance(batch, places.start)
            found = exact.values(batch)
            floats.append({node: found[node] for node in read})
            targets.append(exact.advance(batch, places.stop))
            quantized.advance(batch, places.start)
            found = quantized.values(batch)
            rounded.append({node: found[node] for node in read})
        if not any(isinstance(target, Tensor) and target.numel() for target in targets):
            raise CalibrationError("there is nothing to learn from: all batches are empty", at=block.name)
        run = FloatRun(self.simulated, {})
        called = {node: _called_by(run, node) for node in block.nodes if node.op == "call_module"}
        by_items = items_are_independent(block, called, floats, targets)
        kept = floats if keep_exact else [{} for _ in floats]
        return BlockValues(block, rounded, kept, targets, by_items, self.memory)

    def _finished(self, each: LearningBlock, state: Mapping[str, Any]) -> LearnedBlock:
        """Let the simulation give what was learned, unless the block stays as it was."""
        parts, each.unchanged = each.parts, not state["after"] < state["before"]
        if not each.unchanged:
            parts.finish(state)
        return LearnedBlock(
            each.block.name,
            tuple(layer.root for layer in parts.layers.values()),
            parts.count(),
            len(parts.scales),
            state["before"],
            state["before"] if each.unchanged else state["after"],
            each.unchanged,
        )


def _called_by(run: FloatRun, node: Node) -> Any:
    return lambda *args, **kwargs: run.call_module(node.target, args, kwargs)
