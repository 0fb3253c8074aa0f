"""Runs a search: estimates the noise of all choices, solves for the best point, measures it, corrects once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule

from fxquant.analysis.metrics import SignalToNoise
from fxquant.distributed.shared_numbers import shared_map
from fxquant.graph.shapes import unchanged_state
from fxquant.plan.precision import Choice
from fxquant.precision.budget import Budget
from fxquant.precision.drop import Found, cheapest_within
from fxquant.precision.estimates import Estimates, alone_at
from fxquant.precision.evaluation import Evaluation, Measured
from fxquant.precision.group_runs import GroupRuns
from fxquant.precision.options import Options
from fxquant.precision.simulations import Simulations
from fxquant.training.checkpoint import Checkpoint

TOO_FAR = 3.0
"""dB between what is predicted and what is measured of a point, from which on noise is estimated anew around it."""
SMALLEST_RATIO = 1e-3
"""Of what a group adds to the noise of a point to what it adds alone."""


@dataclass(slots=True)
class Search:
    """The search in one model.

    Args:
        options: What can be chosen.
        simulations: Makes models of choices.
        evaluation: Runs them.
        inputs: Of each batch, by name.
        seed: Of what is drawn at random.
        bar: The progress bar.
    """

    options: Options
    simulations: Simulations
    evaluation: Evaluation
    inputs: Sequence[Mapping[str, Any]]
    seed: int
    bar: Any
    gap: float = field(init=False, default=0.0)
    corrected: bool = field(init=False, default=False)
    predicted: float = field(init=False, default=0.0)
    """Noise over signal that was predicted of the point."""

    def estimate(self, by_gradient: bool, checkpoint: Checkpoint | None) -> bool:
        """Measure the noise of all choices. Return whether that was interrupted."""
        chosen = {choice.name: alone_at(choice, self.options) for choice in self.options.choices if not choice.is_float}
        names = [name for name, units in chosen.items() if units]
        estimates = Estimates(
            self.options,
            names,
            lambda name: self.simulations.make(chosen[name]),
            self.inputs,
            self.seed,
            by_gradient,
            checkpoint,
            self.bar,
        )
        estimates.run()
        return estimates.interrupted

    def within_budget(self, budget: Budget) -> Found:
        """Return the point of least noise within a budget, as it was measured; estimated anew if that is far off."""
        chosen, self.gap = self.options.within(budget)
        self.predicted = self.options.predicted(chosen)
        first = Found(chosen, self.measure(chosen), True)
        predicted, measured = _decibels(self.predicted), _decibels(first.measured.noise)
        if predicted == measured or abs(predicted - measured) <= TOO_FAR:  # both may be infinite
            return first
        offset = self._correct(first)
        self.corrected = True
        chosen, gap = self.options.within(budget)
        if chosen == first.chosen:
            self.predicted, self.gap = first.measured.noise, gap
            return first
        second = Found(chosen, self.measure(chosen), True)
        if second.measured.noise < first.measured.noise:
            self.predicted, self.gap = max(0.0, offset + self.options.predicted(chosen)), gap
            return second
        self.predicted = first.measured.noise
        return first

    def within_drop(self, max_drop: float) -> Found:
        """Return the cheapest point whose metric falls by no more than is allowed."""
        found = cheapest_within(self.options, max_drop, self.measure)
        self.predicted = self.options.predicted(found.chosen)
        return found

    def measure(self, chosen: Sequence[Choice]) -> Measured:
        """Run the model with the choices of all groups over all data."""
        self.bar.set_postfix_str("the whole model")
        return self.evaluation.measure(self.simulation_of(chosen))

    def simulation_of(self, chosen: Sequence[Choice]) -> GraphModule:
        """Return the simulation of a point."""
        return self.simulations.make(
            {root: each for group, each in zip(self.options.groups, chosen, strict=True) for root in group.roots}
        )

    def _correct(self, point: Found) -> float:
        """Scale the noise of each group by what it adds to a point, over what it adds alone.

        Returns:
            What the noise of the point is above the sum over groups, then.
        """
        simulated, options = self.simulation_of(point.chosen), self.options
        scores = [SignalToNoise() for _ in options.groups]
        runs = GroupRuns(simulated, options.groups, self.seed, alone=False)
        with torch.no_grad(), torch.random.fork_rng(), unchanged_state(simulated):

            def of_batch(index: int) -> list[Any]:
                exact = self.evaluation.outputs[index]
                return [(place, scores[place].measure(output, exact)) for place, output in runs.run(self.inputs[index])]

            for found in shared_map("the noise of groups at a point", len(self.inputs), of_batch):
                for place, numbers in found:
                    scores[place].fold(numbers)
        for place, (score, choice) in enumerate(zip(scores, point.chosen, strict=True)):
            alone = options.noise[place][choice.name]
            if score.batches and alone > 0 and score.signal > 0:
                ratio = max(SMALLEST_RATIO, (point.measured.noise - score.noise / score.signal) / alone)
                if math.isfinite(ratio):
                    options.noise[place] = {name: noise * ratio for name, noise in options.noise[place].items()}
        return point.measured.noise - options.predicted(point.chosen)


def _decibels(noise: float) -> float:
    return -10 * math.log10(noise) if 0 < noise < math.inf else (math.inf if noise == 0 else -math.inf)
