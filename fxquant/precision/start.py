"""Starts a search: what can be chosen, what it costs, and the noise of each choice."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from fxquant.analysis.metrics import Metric
from fxquant.precision.budget import Budget
from fxquant.precision.choices import choices_of
from fxquant.precision.configurations import Configurations
from fxquant.precision.evaluation import Evaluation
from fxquant.precision.given import Given
from fxquant.precision.groups import precision_groups
from fxquant.precision.latencies import latencies_of
from fxquant.precision.options import Options
from fxquant.precision.search import Search
from fxquant.precision.simulations import Simulations
from fxquant.quantizer.quantizer import Quantizer


@dataclass(frozen=True, slots=True)
class Settings:
    """The arguments of ``search_precision`` that say how to measure."""

    candidates: Any
    metric: Metric | None
    higher_is_better: bool
    estimate: str
    confidence: float
    seed: int
    checkpoint: str | os.PathLike[str] | None
    latencies: Any


def start_search(
    prepared: Quantizer, given: Given, bases: Configurations, settings: Settings, budget: Budget | None, bar: Any
) -> Search:
    """Return a search that knows the noise of each choice of each group, as far as no interrupt ended it.

    Args:
        prepared: What was calibrated.
        given: The data.
        bases: How the units are configured.
        settings: How to measure.
        budget: What must be reachable; None: there is none.
        bar: The progress bar.

    Raises:
        InputError: the budget cannot be reached, or an argument does not fit the model.
    """
    # Say what can be chosen, and what it costs.
    choices, seed = choices_of(settings.candidates), settings.seed
    simulations = Simulations(prepared, bases, given.batches, bar.update)
    groups = precision_groups(prepared.graph_module, bases.context)
    options = Options(groups, choices, prepared.backend)
    options.exclude(simulations)
    stored = given.checkpoint(settings.checkpoint, prepared, options, bases.qconfigs, seed, settings.estimate)
    wants_latency = settings.latencies is not None or (budget is not None and budget.latency is not None)
    if wants_latency:
        options.latencies = latencies_of(settings.latencies, prepared, given.inputs[0], settings.checkpoint)
    if budget is not None:
        options.check_reachable(budget)

    # Observe the ranges of other bits.
    runs = sum(not each.is_float for each in choices) * len(groups) * len(given.batches)
    bar.reset(total=runs + len(given.batches) * sum(map(simulations.needs_data, choices)))
    for choice in choices:
        simulations.observe(choice)

    # Run the float model, then each choice.
    evaluation = Evaluation(
        simulations.make({}),
        given.inputs,
        given.targets,
        settings.metric,
        settings.higher_is_better,
        settings.confidence,
        seed,
    )
    search = Search(options, simulations, evaluation, given.inputs, seed, bar)
    search.estimate(settings.estimate == "gradient", stored)
    return search
