"""Measures what each choice of each group adds to the noise of the model's output, all other groups in float."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from fxquant.analysis.metrics import SignalToNoise
from fxquant.distributed.shared_numbers import shared_map
from fxquant.distributed.sharing import active_ranks
from fxquant.errors import error_context
from fxquant.graph.shapes import unchanged_state
from fxquant.plan.precision import Choice
from fxquant.precision.gradients import OutputGradients
from fxquant.precision.group_runs import GroupRuns
from fxquant.precision.options import LARGEST, Options
from fxquant.training.checkpoint import Checkpoint

NOT_FINITE = LARGEST**2
"""The same of one batch, which no number of batches with little noise makes less than ``LARGEST``."""

Sums = tuple[Tensor, Tensor]
"""Noise and signal of each group, float64 [groups]."""


@dataclass(slots=True)
class Estimates:
    """Fills the noise of options, batch after batch.

    Args:
        options: Their ``noise`` is set.
        names: Those of the choices to measure.
        make: Makes the simulation in which all groups have a choice that can. It is called when that is first needed.
        inputs: Of each batch, by name.
        seed: Of what is drawn at random.
        by_gradient: Noise by the gradients of the output, and not by running each group alone.
        checkpoint: Holds the sums of finished batches.
        bar: The progress bar.
    """

    options: Options
    names: Sequence[str]
    make: Callable[[str], GraphModule]
    inputs: Sequence[Mapping[str, Any]]
    seed: int
    by_gradient: bool
    checkpoint: Checkpoint | None
    bar: Any
    _sums: dict[str, Sums] = field(init=False)
    _simulated: dict[str, GraphModule] = field(init=False, default_factory=dict)
    _runs: dict[str, GroupRuns] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        count = len(self.options.groups)
        zeros = torch.zeros(count, dtype=torch.float64)
        self._sums = {name: (zeros.clone(), zeros.clone()) for name in self.names}

    @property
    def interrupted(self) -> bool:
        """Tell whether a choice of a group was not measured on any batch."""
        return any(
            choice.name not in noise
            for allowed, noise in zip(self.options.allowed, self.options.noise, strict=True)
            for choice in allowed
        )

    def run(self) -> None:
        """Measure on all batches. An interrupt ends it, if there is anything to tell by then."""
        try:
            with torch.random.fork_rng():
                self._run()
        except KeyboardInterrupt:
            if not any(bool(signal.any()) for _, signal in self._sums.values()):
                raise
        for name, (noise, signal) in self._sums.items():
            for place, known in enumerate(self.options.noise):
                if float(signal[place]) > 0:
                    known[name] = min(LARGEST, float(noise[place] / signal[place]))

    def _run(self) -> None:
        """Measure batch by batch: all choices on the first, then on the next, so that an interrupt leaves all known."""
        if active_ranks() is None:
            for batch in range(len(self.inputs)):
                for name, sums in self._of_batch(batch):
                    self._add(name, sums)
            return

        def of_batch(batch: int) -> list[Any]:
            return [(name, noise.tolist(), signal.tolist()) for name, (noise, signal) in self._of_batch(batch)]

        for found in shared_map("the noise of choices", len(self.inputs), of_batch):
            for name, *sums in found:
                noise, signal = (torch.tensor(each, dtype=torch.float64) for each in sums)
                self._add(name, (noise, signal))

    def _add(self, name: str, sums: Sums) -> None:
        for total, more in zip(self._sums[name], sums, strict=True):
            total += more

    def _of_batch(self, batch: int) -> Iterator[tuple[str, Sums]]:
        """Yield the sums of each choice on one batch."""
        gradients: OutputGradients | None = None
        for index, name in enumerate(self.names):
            number = batch * len(self.names) + index
            sums = self._stored(number)
            if sums is None:
                simulated = self._simulation_of(name)
                with error_context(f"batch {batch}"), unchanged_state(simulated):
                    if self.by_gradient and gradients is None:
                        gradients = OutputGradients(simulated, self.options.groups, self.seed + batch)
                        gradients.add(self.inputs[batch])
                    sums = self._measured(name, self._runs[name], self.inputs[batch], gradients)
                if self.checkpoint is not None:
                    self.checkpoint.save(number, {"noise": sums[0], "signal": sums[1]})
            else:
                self.bar.update(len(self.options.groups))
            yield name, sums

    def _simulation_of(self, name: str) -> GraphModule:
        """Return the simulation of a choice, made when it is first needed."""
        if name not in self._simulated:
            self._simulated[name] = self.make(name)
            self._runs[name] = GroupRuns(self._simulated[name], self.options.groups, self.seed)
        return self._simulated[name]

    def _stored(self, number: int) -> Sums | None:
        zeros = torch.zeros(len(self.options.groups), dtype=torch.float64)
        found = None if self.checkpoint is None else self.checkpoint.load(number, {"noise": zeros, "signal": zeros})
        return None if found is None else (found["noise"], found["signal"])

    def _measured(
        self, name: str, runs: GroupRuns, bound: Mapping[str, Any], gradients: OutputGradients | None
    ) -> Sums:
        """Return the sums of one batch; those of groups that do not have the choice stay 0."""
        count = len(self.options.groups)
        noise, signal = (torch.zeros(count, dtype=torch.float64) for _ in range(2))
        having = {place for place, allowed in enumerate(self.options.allowed) if name in {c.name for c in allowed}}
        # By gradients: one run for all groups.
        if gradients is not None:
            noise, total = gradients.noise_of(self._simulated[name], bound)
            total = max(total, torch.finfo(torch.float64).tiny)
            noise = noise.nan_to_num(nan=math.inf, posinf=math.inf).clamp(max=NOT_FINITE * max(total, 1.0))
            signal = torch.tensor([total * (place in having) for place in range(count)], dtype=torch.float64)
            self.bar.update(count)
            return noise, signal
        # Alone: one run for each group.
        with torch.no_grad():
            exact = runs.whole(bound, rounded=False)
            own = SignalToNoise()
            own.add(exact, exact)
            signal[sorted(having)] = max(own.signal, torch.finfo(torch.float64).tiny)
            for place, output in runs.run(bound):
                if place in having:
                    score = SignalToNoise()
                    score.add(output, exact)
                    noise[place] = min(score.noise, NOT_FINITE * max(score.signal, 1.0))
                self.bar.set_postfix_str(f"{self.options.groups[place].name} {name}")
                self.bar.update()
            return noise, signal


def alone_at(choice: Choice, options: Options) -> dict[str, Choice]:
    """Return the choice of every unit whose group has it."""
    return {
        root: choice
        for group, allowed in zip(options.groups, options.allowed, strict=True)
        for root in group.roots
        if choice in allowed
    }
