"""``search_precision``: the bits of each layer, under a budget or so that a metric falls no further than is allowed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from tqdm import tqdm

from fxquant.analysis.metrics import Metric
from fxquant.distributed.facts import data_facts, digest, module_facts, without_addresses
from fxquant.distributed.shared_numbers import compare_in_ranks
from fxquant.precision.arguments import check_arguments
from fxquant.precision.budget import Budget
from fxquant.precision.configurations import configurations
from fxquant.precision.given import read
from fxquant.precision.results import result_of
from fxquant.precision.start import Settings, start_search
from fxquant.precision.table import PrecisionSearch
from fxquant.quantizer.quantizer import Quantizer, outside_inference_mode


@outside_inference_mode
def search_precision(
    prepared: Quantizer,
    data: Iterable[Any],
    *,
    budget: Budget | None = None,
    max_drop: float | None = None,
    candidates: Any = None,
    metric: Metric | None = None,
    against: Literal["float", "target"] = "float",
    higher_is_better: bool = True,
    estimate: Literal["alone", "gradient"] = "alone",
    confidence: float = 0.95,
    num_batches: int | None = None,
    seed: int = 0,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool = True,
    latencies: Mapping[str, Mapping[str, float]] | str | os.PathLike[str] | None = None,
) -> PrecisionSearch:
    """Find the bits of each layer: the least noise within a budget, or the least cost at which a metric holds.

    The noise that each choice of each group of units adds to the model's output is measured with all else in float;
    these add up. The best choice for all groups together is then an exact multiple-choice knapsack. The point that it
    gives is run as a whole: where the measured noise differs from the predicted by more than 3 dB, noise is estimated
    anew around the point, once. With ``max_drop`` the front is searched by halves for its cheapest point that keeps to
    it, and single changes are tried then.

    Args:
        prepared: What :func:`prepare` and :func:`calibrate` gave. It is not changed.
        data: As for :func:`calibrate`, with targets behind the inputs for ``against="target"``. It is read once and
            held: ranges for other bits are observed on it, too.
        budget: The most that the units may cost. What it does not name stays within what all units at 8 bits cost,
            where that can be.
        max_drop: The most that the metric may fall below the float model's, in the unit of the metric. Exactly one of
            ``budget`` and ``max_drop`` is given.
        candidates: Names such as ``"W4A8"``, ``"int16"`` and ``"float"``, or a ``QConfig`` by name. None: W4A4, W4A8,
            W8A8, int16 and float. A group has those that the back end can run; ``excluded`` says which, and why not.
        metric: ``metric(output, expected)``, a number for each batch, averaged by the size of batches. ``max_drop``
            needs it.
        against: As for :func:`sensitivity`: the metric compares with the output of the float model, or the target.
        higher_is_better: Of the metric.
        estimate: ``"alone"``: each group and choice is run alone, half a run of the model each. ``"gradient"``: noise
            by gradients of the output, a run of the model for each choice: for hundreds of layers. Values of the float
            model's output that are inf or NaN are left out.
        confidence: Of the interval of the metric's drop.
        num_batches: Stop after so many.
        seed: Of what is drawn at random. Random states outside are left alone.
        checkpoint: A folder, in which finished measurements are written down. A run that finds its own goes on there,
            and ends with the same bits. Latencies are kept there, too.
        progress: Show a progress bar with the time that is left.
        latencies: Seconds of each unit in int8 and in float, or a JSON file of them. None: measured here, if the budget
            names latency.

    Returns:
        A table: ``mapping()`` of it is a configuration for :func:`prepare`, ``pareto`` the whole front. An interrupt
        gives what is known by then: choices that were not measured are taken to add a quarter of the noise for each bit
        more, and are named in ``missing``.

    Raises:
        RankError: inside of :func:`share_work`, another rank does not go on.
        InputError: an argument or a batch is of the wrong kind, the budget cannot be reached, the checkpoint is of
            another run, the output holds no finite value, or its gradients are not finite.
        UnknownNameError: there is no such candidate, estimate or ``against``.
        CalibrationError: ``prepared`` was not calibrated, or ``data`` holds no batch.

    Source:
        The sum over layers and the choice under a budget: Dong et al., "HAWQ-V2", arXiv:1911.03852, section 3.2, here
        with measured noise in place of traces; the solver: ``fxquant/precision/knapsack.py``.

    Example:
        >>> import torch, fxquant
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)).eval()
        >>> data = [torch.randn(16, 8)]
        >>> prepared = fxquant.calibrate(fxquant.prepare(model, data[0]), data, progress=False)
        >>> found = search_precision(prepared, data, budget=fxquant.Budget(size=0.6), progress=False)
        >>> mixed = fxquant.prepare(model, data[0], found.mapping())
    """
    # Check the arguments, and read the data.
    check_arguments(
        prepared,
        budget=budget,
        max_drop=max_drop,
        metric=metric,
        against=against,
        estimate=estimate,
        confidence=confidence,
        seed=seed,
    )
    settings = Settings(candidates, metric, higher_is_better, estimate, confidence, seed, checkpoint, latencies)
    given = read(prepared, data, num_batches, with_targets=against == "target")
    bases = configurations(prepared)
    compare_in_ranks(
        "search_precision",
        lambda: {
            **module_facts(prepared.graph_module, "model"),
            **data_facts(given.inputs),
            "observed ranges": digest(prepared.observers.state_dict()),
            "set of arguments": without_addresses(
                f"{budget}, {max_drop}, {candidates}, {estimate}, {confidence}, {seed}"
            ),
        },
    )
    with tqdm(desc="search", unit="run", disable=not progress) as bar:
        # Measure the noise of each choice.
        search = start_search(prepared, given, bases, settings, budget, bar)
        missing = search.options.assume_missing()

        # Choose, and measure what was chosen.
        found = search.within_budget(budget) if budget is not None else search.within_drop(float(max_drop or 0))
    return result_of(search, found, missing, max_drop, bases)
