"""Measures where the time of an int8 model goes, operator by operator, beside the float model."""

from __future__ import annotations

import copy
import statistics
from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from tqdm import tqdm

from fxquant.analysis.naming import title_of
from fxquant.analysis.profile_table import Kind, Profile, ProfileRow
from fxquant.calibration.interpreter import inputs_of
from fxquant.errors import CalibrationError, InputError, user_line
from fxquant.graph.inputs import bind
from fxquant.graph.module import ENGINE
from fxquant.graph.query import module_of, nodes_by_name, operator_name
from fxquant.graph.shapes import unchanged_state
from fxquant.measure.parity import plan_of
from fxquant.measure.timing import CALLS, TimedPrograms, TimedRun, interleaved_medians
from fxquant.nn.quantize import Dequantize, Quantize, Requantize
from fxquant.plan.qconfig import QConfig, QConfigMapping
from fxquant.quantizer.checks import form_of, in_eval, named_by_form
from fxquant.quantizer.quantizer import Quantizer
from fxquant.runtime import engine_of

BORDERS = (Quantize, Dequantize, Requantize)
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
        A table of units, borders and what stays float, the most expensive first; sums; and both models as a whole,
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
    if form_of(model) in ("training", "converted"):
        raise InputError(
            "profile takes the float model first",
            got=named_by_form(model),
            expected="a float model, or the Quantizer that prepare gave",
            hint="profile(model, inputs, int8=converted)",
        )
    model = model if isinstance(model, Quantizer) else in_eval(model)
    prepared = model if isinstance(model, Quantizer) else _prepared(model, inputs, qconfig)
    args, kwargs = inputs_of(inputs, prepared.example_args, "what to measure on", prepared.graph_module)
    int8 = _int8(prepared, args, kwargs) if int8 is None else int8
    plan_of(int8)  # raises where it is no converted model
    as_graph = _as_graph(int8)
    whole: Any = prepared.graph_module if isinstance(model, Quantizer) else model
    with torch.no_grad(), unchanged_state(prepared.graph_module), unchanged_state(whole):
        timer = _Timer(prepared.graph_module, as_graph, bind(as_graph, args, kwargs, "the inputs"), engine_of(int8))
        for _ in tqdm(range(rounds), desc="profile", unit="round", disable=not progress):
            timer.round()
        calls = {"float": whole, "graph": as_graph, **({} if engine_of(int8) is None else {"program": int8})}
        for _ in range(FIRST_CALLS):
            for each in calls.values():
                each(*args, **kwargs)
        bound = {name: partial(each, *args, **kwargs) for name, each in calls.items()}
        seconds = interleaved_medians(bound, 2 * rounds, timer.on_gpu)
    engine = engine_of(int8)
    return Profile(
        rows=timer.rows(prepared, int8),
        threads=torch.get_num_threads(),
        float_ms=1e3 * seconds["float"],
        graph_ms=1e3 * seconds["graph"],
        program_ms=1e3 * seconds["program"] if "program" in seconds else None,
        programs="" if engine is None else str(engine).splitlines()[-1],
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


def _as_graph(int8: GraphModule) -> GraphModule:
    """A copy that runs operator by operator."""
    copied = copy.deepcopy(int8)
    if copied.__dict__.pop(ENGINE, None) is not None:
        copied.recompile()
    return copied


class _Timer:
    """Seconds of every node of both models, round by round."""

    def __init__(self, floats: GraphModule, int8: GraphModule, bound: Mapping[str, Any], engine: Any) -> None:
        self._floats, self._int8, self._bound = floats, int8, bound
        self._programs: dict[str, Any] | None = None if engine is None else {}
        self._seconds: dict[str, dict[str, list[float]]] = {
            form: defaultdict(list) for form in ("float", "graph", "program")
        }

    @property
    def on_gpu(self) -> bool:
        return any(isinstance(x, Tensor) and x.is_cuda for x in self._bound.values())

    def round(self) -> None:
        """Run each model once, in each form."""
        self._take("float", TimedRun(self._floats, self._bound, _calls(self._floats)))
        self._take("graph", TimedRun(self._int8, self._bound, _calls(self._int8)))
        if self._programs is not None:
            self._take("program", TimedPrograms(self._int8, self._bound, _calls(self._int8), self._programs))

    def _take(self, form: str, run: TimedRun) -> None:
        run.run()
        for name, seconds in run.seconds.items():
            self._seconds[form][name].append(seconds)

    def rows(self, prepared: Quantizer, int8: GraphModule) -> tuple[ProfileRow, ...]:
        """Every call of the int8 model, the most expensive first."""
        medians = {
            form: {name: 1e6 * statistics.median(times) for name, times in nodes.items()}
            for form, nodes in self._seconds.items()
        }
        real, graph, runs = medians["float"], medians["graph"], medians["program"] or medians["graph"]
        nodes = nodes_by_name(prepared.graph_module)
        planned = {unit.root: unit for unit in prepared.plan.units}
        units = {unit.root for unit in plan_of(int8).units}
        total = sum(runs.values()) or 1.0
        rows = []
        for node in int8.graph.nodes:
            if node.name not in graph:
                continue
            unit = planned.get(node.name) if node.name in units else None
            members = [nodes[name] for name in unit.nodes] if unit is not None else [nodes.get(node.name, node)]
            kind: Kind = "unit" if unit is not None else "border" if isinstance(module_of(node), BORDERS) else "float"
            in_float = [real[member.name] for member in members if member.name in real]
            rows.append(
                ProfileRow(
                    unit=node.name,
                    name=title_of(members[0], node.name) if kind != "border" else node.name,
                    kind=kind,
                    operator=unit.pattern if unit is not None else operator_name(node),
                    line=user_line(members[0]),
                    float_us=sum(in_float) if in_float and kind != "border" else None,
                    int8_us=runs[node.name],
                    graph_us=graph[node.name],
                    share=runs[node.name] / total,
                )
            )
        return tuple(sorted(rows, key=lambda row: -row.int8_us))


def _calls(gm: GraphModule) -> set[str]:
    return {node.name for node in gm.graph.nodes if node.op in CALLS}
