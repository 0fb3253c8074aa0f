"""Measures what each unit costs when it alone is quantized, on the model's output."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch.fx import GraphModule
from tqdm import tqdm

from fxquant.analysis.inputs import target_of
from fxquant.analysis.metrics import Average, Metric, Score, SignalToNoise, check_metric
from fxquant.analysis.sensitivity_table import Sensitivity
from fxquant.analysis.unit_scores import UnitScores
from fxquant.calibration.batches import check_iterable, expected_batches, holds_values, inputs_of
from fxquant.distributed.facts import module_facts
from fxquant.distributed.shared_numbers import SharedNumbers
from fxquant.errors import CalibrationError, error_context
from fxquant.graph.shapes import unchanged_state
from fxquant.quantizer.checks import check_seed, not_prepared
from fxquant.quantizer.quantizer import Quantizer, outside_inference_mode
from fxquant.training.trained import quantizer_of


@outside_inference_mode
def sensitivity(
    prepared: Quantizer | GraphModule,
    data: Iterable[Any],
    *,
    metric: Metric | None = None,
    against: Literal["float", "target"] = "float",
    higher_is_better: bool = True,
    num_batches: int | None = None,
    seed: int = 0,
    progress: bool = True,
) -> Sensitivity:
    """Find out what each unit costs alone: for each, the model runs with that unit quantized and all others in float.

    A unit alone has its inputs, its weight and its result rounded. The float model runs once for each batch, and the
    run with a unit quantized goes on from where this unit is: it costs what lies after the unit, half a run on
    average. Memory holds what two runs need at one point of the graph; nothing is kept for other units or batches.

    Args:
        prepared: What :func:`prepare` gave, calibrated; or the model of :func:`prepare_qat`.
        data: Yields batches, as for :func:`calibrate`. It is read once.
        metric: ``metric(output, expected)``, a number for each batch, averaged by the size of batches. None: signal to
            noise of the output against that of the float model, in dB.
        against: What ``expected`` is: ``"float"``, the output of the float model; ``"target"``, what a batch holds
            after the inputs, a label say (a tuple, if that is several things).
        higher_is_better: Of the user's metric.
        num_batches: Stop after so many.
        seed: Of what the model draws at random: the same numbers in every run. Random states outside are left alone.
        progress: Show a progress bar over batches and units.

    Returns:
        A table, the most expensive unit first; ``mapping(k)`` of it is a configuration that spares the worst k. Units
        that only move values round nothing, and have no row. An interrupt gives what was measured until then.

    Raises:
        InputError: an argument or a batch is of the wrong kind.
        UnknownNameError: ``against`` is neither.
        CalibrationError: ``prepared`` was not calibrated, or ``data`` holds no batch.
        RankError: inside of :func:`share_work`, another rank does not go on.

    Example:
        >>> import torch, fxquant
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4)).eval()
        >>> data = [torch.randn(16, 8)]
        >>> prepared = fxquant.calibrate(fxquant.prepare(model, data[0]), data, progress=False)
        >>> found = sensitivity(prepared, data, progress=False)
        >>> mixed = fxquant.prepare(model, data[0], found.mapping(1))
    """
    # Check the arguments, and plan the runs.
    prepared = _quantizer(prepared)
    check_metric(metric, against)
    check_iterable(data)
    expected = expected_batches(data, num_batches)
    simulated = prepared.convert(to="fake_quant")
    check_seed(seed)
    run = UnitScores(prepared, simulated, _scorer(metric, higher_is_better), seed)
    share = SharedNumbers("sensitivity", data, num_batches, lambda: _facts(simulated, seed), run.fold)
    total = None if expected is None else -(-expected // share.size) * run.steps
    # Measure batch by batch, with the same random numbers in each run.
    devices = sorted({t.device.index or 0 for t in simulated.parameters() if t.is_cuda})
    with (
        torch.no_grad(),
        torch.random.fork_rng(devices),
        unchanged_state(simulated),
        tqdm(total=total, desc="sensitivity", unit="run", disable=not progress or share.rank > 0) as bar,
    ):
        try:
            for index, batch in share.batches():
                what = f"batch {index}"
                inputs = inputs_of(batch, prepared.example_args, what, prepared.graph_module)
                target = target_of(batch, len(prepared.example_args), what) if against == "target" else None
                if not holds_values(inputs):
                    continue
                with error_context(what):
                    for name, found in run.measure(*inputs, target, against == "target", bar):
                        share.keep(index, name, found)
            share.fold_all()
        except KeyboardInterrupt:
            if not run.started:
                raise
    # Make the table.
    if not run.started:
        raise CalibrationError("there is no data to measure on", got="no batch", expected="at least one batch")
    name = getattr(metric, "__name__", "")
    return run.result("SQNR dB" if metric is None else name if name.isidentifier() else "metric")


def _facts(simulated: GraphModule, seed: int) -> dict[str, str]:
    return {**module_facts(simulated, "simulation"), "seed": str(seed)}


def _quantizer(prepared: Any) -> Quantizer:
    if isinstance(prepared, Quantizer):
        return prepared
    if isinstance(getattr(prepared, "preparation", None), Quantizer):
        return quantizer_of(prepared)
    raise not_prepared(prepared, "sensitivity", or_training=True)


def _scorer(metric: Metric | None, higher_is_better: bool) -> Callable[[], Score]:
    return SignalToNoise if metric is None else lambda: Average(metric, higher_is_better)
