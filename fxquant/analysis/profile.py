"""Measures where the time of an int8 model goes, operator by operator, beside the float model."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule
from tqdm import tqdm

from fxquant.analysis.operator_times import OperatorTimes
from fxquant.analysis.profile_table import Profile
from fxquant.calibration.batches import inputs_of
from fxquant.errors import CalibrationError, InputError
from fxquant.graph.inputs import bind
from fxquant.graph.shapes import unchanged_state
from fxquant.measure.parity import plan_of
from fxquant.measure.timing import interleaved_medians
from fxquant.plan.qconfig import QConfig, QConfigMapping
from fxquant.quantizer.checks import eval_copy_if_training, named_by_stage, stage_of
from fxquant.quantizer.quantizer import Quantizer
from fxquant.runtime import engine_of, without_engine

FIRST_CALLS = 3
"""After these, a model runs by programs."""


def profile(
    model: nn.Module | Quantizer,
    inputs: Any,
    *,
    int8: GraphModule | None = None,
    qconfig: QConfig | QConfigMapping | None = None,
    rounds: int = 7,
    progress: bool = False,
) -> Profile:
    """Measure on this machine what each operator takes in float and in int8, and which units lose.

    In every round each operator of both models is run where it stands, on what it is given there, once to warm up and
    once timed; of the rounds the median counts. Load from elsewhere makes numbers larger, in both models alike. Memory
    holds what a run of each model needs.

    Args:
        model: A float module; or what :func:`prepare` gave.
        inputs: A tensor, a tuple of positional inputs, or a dict of keyword inputs: of the size that matters.
        int8: What :func:`convert` made of ``model``, to be measured as it is. None: one is made, calibrated on
            ``inputs`` alone if need be, which changes its accuracy and not its speed.
        qconfig: For a float module without ``int8``; None: the default.
        rounds: Of the measurement.
        progress: Show a progress bar.

    Returns:
        A table of units, boundaries and what stays float, the most expensive first; sums; and both models as a whole,
        the int8 one also by programs where it runs so.

    Raises:
        InputError: an argument is of the wrong kind, or the inputs do not run.
    """
    if not isinstance(model, (nn.Module, Quantizer)) or type(rounds) is not int or rounds < 1:
        raise InputError(
            "profile takes a model, its inputs, and how many rounds to measure",
            got=f"{type(model).__name__}, rounds={rounds!r}",
            expected="a torch.nn.Module or a Quantizer, and at least one round",
        )
    if stage_of(model) in ("training", "converted"):
        raise InputError(
            "profile takes the float model first",
            got=named_by_stage(model),
            expected="a float model, or the Quantizer that prepare gave",
            hint="profile(model, inputs, int8=converted)",
        )
    # Make what is missing: the plan, and the int8 model.
    model = model if isinstance(model, Quantizer) else eval_copy_if_training(model)
    prepared = model if isinstance(model, Quantizer) else _prepared(model, inputs, qconfig)
    args, kwargs = inputs_of(inputs, prepared.example_args, "what to measure on", prepared.graph_module)
    int8 = _int8(prepared, args, kwargs) if int8 is None else int8
    plan_of(int8)  # raises where it is no converted model
    as_graph = without_engine(int8)
    whole: Any = prepared.graph_module if isinstance(model, Quantizer) else model
    with torch.no_grad(), unchanged_state(prepared.graph_module), unchanged_state(whole):
        # Time each operator where it stands.
        timer = OperatorTimes(
            prepared.graph_module, as_graph, bind(as_graph, args, kwargs, "the inputs"), engine_of(int8)
        )
        for _ in tqdm(range(rounds), desc="profile", unit="round", disable=not progress):
            timer.round()
        # Time whole models in turns, after calls that warm them up.
        models = {"float": whole, "graph": as_graph, **({} if engine_of(int8) is None else {"program": int8})}
        taken = timer.call_of_int8(args, kwargs)
        inputs_of_form = {name: (args, kwargs) if name == "float" else taken for name in models}
        calls = {
            name: partial(model, *inputs_of_form[name][0], **inputs_of_form[name][1]) for name, model in models.items()
        }
        for _ in range(FIRST_CALLS):
            for call in calls.values():
                call()
        seconds = interleaved_medians(calls, 2 * rounds, timer.on_gpu)
    engine = engine_of(int8)
    return Profile(
        rows=timer.rows(prepared, int8),
        threads=torch.get_num_threads(),
        float_ms=1e3 * seconds["float"],
        graph_ms=1e3 * seconds["graph"],
        program_ms=1e3 * seconds["program"] if "program" in seconds else None,
        programs="" if engine is None else engine.plans[-1].summary if engine.plans else str(engine),
    )


def _prepared(model: nn.Module, inputs: Any, qconfig: QConfig | QConfigMapping | None) -> Quantizer:
    args, kwargs = ((), dict(inputs)) if isinstance(inputs, Mapping) else (inputs, {})
    return Quantizer(model, args, qconfig, example_kwargs=kwargs)


def _int8(prepared: Quantizer, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> GraphModule:
    try:
        return prepared.convert()
    except CalibrationError:
        calibrated = copy.deepcopy(prepared)
        calibrated.observe(*args, **kwargs)
        return calibrated.convert()
