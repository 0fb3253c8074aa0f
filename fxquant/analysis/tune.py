"""Converts a model so that every unit runs as it is fastest on this machine: in int8 or in float."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.fx import GraphModule
from tqdm import tqdm

from fxquant.analysis.tuning_table import Fate, Tuning, TuningRow
from fxquant.analysis.unit_placement import Times, ValueUse, flows, tuned_units, units_in_float
from fxquant.graph.inputs import bind
from fxquant.graph.module import get_metadata
from fxquant.graph.query import module_path, nodes_by_name
from fxquant.graph.shapes import unchanged_state
from fxquant.measure.timing import BoundaryTimer, UnitTimer, interleaved_medians
from fxquant.plan.quant_plan import QuantPlan, QuantUnit, Refusal
from fxquant.plan.spec import TensorRef
from fxquant.runtime import engine_of

ROUNDS = 7
"""Of which the median counts."""
WHOLE_ROUNDS = 15
FIRST_CALLS = 3
"""After these, a model runs by programs."""

Make = Callable[[Sequence[Refusal]], Any]


def tuned(
    model: GraphModule, plan: QuantPlan, make: Make, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, Tuning]:
    """Measure every unit, choose for all of them at once, and measure what came of it as a whole.

    The units that are chosen to run in float are those for which the sum of all units' times and of the boundaries
    between int8 and float is the least. The model that this gives is then called in turns with the one that has every
    unit in int8 and with the float model, and the fastest of the three is the answer.

    Args:
        model: The float graph. Nothing of it changes.
        plan: Of all units that can be int8, with the qparams of all values.
        make: Converts it to int8, but for the units whose roots it is given, with the reason.
        args: A batch like those that the model is going to run on.
        kwargs: Its keyword inputs.

    Returns:
        The model, and what was measured.

    Raises:
        InputError: the batch does not fit the model.
    """
    # Time the units of the int8 model and of the float model, and the boundaries between them.
    int8 = make(())
    bound = bind(model, args, kwargs, "the batch to tune on")
    units = tuned_units(plan)
    programs = engine_of(int8) is not None
    timer = UnitTimer(model, int8, units, bound, programs)
    with torch.no_grad(), unchanged_state(model):
        for _ in tqdm(range(ROUNDS), desc="tune", unit="round", disable=None):
            timer.round()
        passing = tuple(flows(model, plan))
        times = Times(
            timer.in_int8, timer.in_float, *_boundary_times(passing, plan, timer.infos, BoundaryTimer(programs, ROUNDS))
        )
        # Choose the units that stay float, and convert with them.
        chosen = units_in_float(model, plan, times)
        made = {"int8": int8}
        rows = _rows(model, units, passing, times)
        if chosen:
            made["tuned"] = make(_refusals(_with_fates(rows, chosen)))
        # Time the whole models: the quickest is the result, and int8 where it is a draw.
        calls = {"float": model, **made}
        for _ in range(FIRST_CALLS):
            for each in made.values():
                each(*args, **kwargs)
        on_gpu = any(tensor.is_cuda for tensor in bound.values() if isinstance(tensor, torch.Tensor))
        seconds = interleaved_medians(
            {name: partial(each, *args, **kwargs) for name, each in calls.items()}, WHOLE_ROUNDS, on_gpu
        )
    best = min(seconds, key=lambda name: (seconds[name], name != "int8"))
    if best == "float":
        chosen = {unit.root for unit in units}
        made["float"] = make(_refusals(_with_fates(rows, chosen)))
    rows = _with_fates(rows, chosen if best != "int8" else set())
    milliseconds = {name: 1e3 * each for name, each in seconds.items()}
    found: Any = get_metadata(made[best], "quant_coverage")
    whole = milliseconds["float"], milliseconds["int8"], milliseconds[best]
    return made[best], Tuning(rows, found, torch.get_num_threads(), *whole)


def _boundary_times(
    passing: Iterable[ValueUse], plan: QuantPlan, infos: Mapping[str, Any], timer: BoundaryTimer
) -> tuple[dict[str, float], dict[str, float]]:
    quantize, dequantize = {}, {}
    for flow in passing:
        qparams = plan.qparams.get(TensorRef(flow.value))
        seconds = (0.0, 0.0) if qparams is None else timer.seconds(infos[flow.value], qparams)
        quantize[flow.value], dequantize[flow.value] = seconds
    return quantize, dequantize


def _rows(
    model: GraphModule, units: Iterable[QuantUnit], passing: Iterable[ValueUse], times: Times
) -> tuple[TuningRow, ...]:
    nodes = nodes_by_name(model)
    of_value = {flow.value for flow in passing}
    rows = []
    for unit in units:
        read = dict.fromkeys(unit.roles[role].name for role in unit.inputs)
        boundary = sum(times.quantize[name] for name in read if name in of_value)
        if "y" in unit.roles:
            boundary += times.dequantize[unit.root]
        path = module_path(nodes[unit.nodes[0]])[0]
        numbers = (1e6 * times.in_int8[unit.root], 1e6 * times.in_float[unit.root], 1e6 * boundary)
        rows.append(TuningRow(unit.root, path, unit.pattern, *numbers, "int8"))
    return tuple(rows)


def _with_fates(rows: Iterable[TuningRow], in_float: set[str]) -> tuple[TuningRow, ...]:
    fates: dict[str, Fate] = dict.fromkeys(in_float, "float")
    return tuple(replace(row, fate=fates.get(row.unit, "int8")) for row in rows)


def _refusals(rows: Iterable[TuningRow]) -> tuple[Refusal, ...]:
    return tuple(Refusal(row.unit, row.pattern, row.reason, True) for row in rows if row.fate == "float")
