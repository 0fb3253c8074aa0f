"""Learns block after block, in the order of the graph, each on what the quantized blocks before it give."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Generator, Tensor
from torch.fx import GraphModule, Node
from tqdm import tqdm

from fxquant.distributed.sharing import active_ranks
from fxquant.errors import CalibrationError
from fxquant.graph.interpreter import BoundInterpreter
from fxquant.measure.runner import FloatRun
from fxquant.training.checkpoint import Checkpoint, Learned
from fxquant.training.resumable_run import Memory, ResumableRun


@dataclass(frozen=True, slots=True)
class TwoRuns:
    """The float model and the quantized one on their way through the graph, over all batches."""

    simulated: GraphModule
    exact: ResumableRun
    quantized: ResumableRun
    batches: int
    memory: Memory

    def targets(self, stop: int, name: str) -> list[Tensor]:
        """Return what the float model gives of each batch at the node before place ``stop``.

        Raises:
            CalibrationError: no batch holds a value; ``name`` says of what.
        """
        found = [self.exact.advance(batch, stop) for batch in range(self.batches)]
        if not any(isinstance(target, Tensor) and target.numel() for target in found):
            raise CalibrationError("there is nothing to learn from: all batches are empty", at=name)
        return found

    def advance(self, run: ResumableRun, stop: int) -> None:
        """Run all batches of one of them up to a place."""
        for batch in range(self.batches):
            run.advance(batch, stop)


class Learnable(ABC):
    """A block with what is learned of it; a unit alone is a block, too."""

    name: str
    """Path of the module that holds its layers, or root of the only unit."""
    nodes: tuple[Node, ...]
    """In the order in which they run; the value of the last one is to be that of the float model."""

    @abstractmethod
    def state(self) -> Learned:
        """Return all that is learned, as it is now, by name; detached."""

    @abstractmethod
    def learn(
        self, runs: TwoRuns, places: range, generator: Generator, progress: Callable[[], object]
    ) -> tuple[float, float]:
        """Learn, and return the error before and after.

        Args:
            runs: Both models; none of them has come further than to the begin of the block.
            places: Of its nodes in the order.
            generator: Of all that is drawn.
            progress: Called after each step.
        """

    @abstractmethod
    def finish(self, state: Mapping[str, Any]) -> Any:
        """Let the simulation give what was learned, and return the row of the table.

        Args:
            state: What ``state`` gave behind ``learn``, with the errors ``before`` and ``after``.
        """


@dataclass(slots=True)
class BlockRun:
    """Learns one block after the other.

    Args:
        simulated: What ``convert(to="fake_quant")`` gave, without gradients; it is changed: afterwards blocks give what
            was learned.
        order: Its nodes in an order in which those of each block stand side by side.
        blocks: In that order.
        inputs: Of each batch, by name.
        iterations: Steps for each block.
        seed: Of what each block draws.
        memory: Holds what blocks read.
        checkpoint: Holds what finished blocks learned.
        title: Of the progress bar.
        reads: Runs the model that blocks learn on: with all that is rounded, or with rounded weights alone.
    """

    simulated: GraphModule
    order: Sequence[Node]
    blocks: Sequence[Learnable]
    inputs: Sequence[Mapping[str, Any]]
    iterations: int
    seed: int
    memory: Memory
    checkpoint: Checkpoint | None
    title: str = "reconstruct"
    reads: type[BoundInterpreter] = BoundInterpreter

    def run(self, progress: bool) -> tuple[Any, ...]:
        """Return the row of each block; with a progress bar over all steps of all blocks."""
        place = {node: index for index, node in enumerate(self.order)}
        last = max((place[each.nodes[-1]] for each in self.blocks), default=-1)
        exact, quantized = (
            ResumableRun(kind(self.simulated, {}), self.order[: last + 1], self.inputs, self.memory)
            for kind in (FloatRun, self.reads)
        )
        runs = TwoRuns(self.simulated, exact, quantized, len(self.inputs), self.memory)
        rows = []
        total = len(self.blocks) * self.iterations
        ranks = active_ranks()
        hidden = not progress or (ranks is not None and ranks.rank > 0)
        with tqdm(total=total, desc=self.title, unit="step", disable=hidden) as bar:
            for index, each in enumerate(self.blocks):
                bar.set_postfix_str(f"{each.name}, {index + 1} of {len(self.blocks)}")
                places = range(place[each.nodes[0]], place[each.nodes[-1]] + 1)
                rows.append(each.finish(self._learned(index, each, places, runs, bar)))
        return tuple(rows)

    def _learned(self, index: int, each: Learnable, places: range, runs: TwoRuns, bar: Any) -> Mapping[str, Any]:
        """Return what a block learned, here or in an earlier run."""
        if self.checkpoint is not None:
            found = self.checkpoint.load(index, {**each.state(), "before": 0.0, "after": 0.0})
            if found is not None:
                if not bar.disable:
                    bar.initial += self.iterations  # the time left is that of what is learned here
                bar.update(self.iterations)
                return found
        generator = Generator().manual_seed(_mixed(self.seed, index))
        before, after = each.learn(runs, places, generator, bar.update)
        state: Learned = {**each.state(), "before": before, "after": after}
        if self.checkpoint is not None:
            self.checkpoint.save(index, state)
        return state


def _mixed(seed: int, index: int) -> int:
    """A seed for each block, so that what it draws does not depend on whether those before it were learned here."""
    return (seed * 1_000_003 + index) % (1 << 63)
