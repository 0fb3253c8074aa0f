"""Times every operator of a float model and of the int8 model made of it."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.fx import GraphModule

from fxquant.analysis.naming import title_of
from fxquant.analysis.profile_table import Kind, ProfileRow
from fxquant.errors import user_line
from fxquant.graph.query import module_of, nodes_by_name, operator_name
from fxquant.measure.parity import plan_of
from fxquant.measure.runner import as_taken, call_as_taken
from fxquant.measure.timing import CALLS, TimedPrograms, TimedRun
from fxquant.nn.quantize import Dequantize, Quantize, Requantize
from fxquant.quantizer.quantizer import Quantizer

BOUNDARIES = (Quantize, Dequantize, Requantize)


class OperatorTimes:
    """Seconds of every node of both models, round by round."""

    def __init__(self, floats: GraphModule, int8: GraphModule, bound: Mapping[str, Any], engine: Any) -> None:
        self._floats, self._int8, self._bound = floats, int8, bound
        self._taken = as_taken(int8, bound)
        self._programs: dict[str, Any] | None = None if engine is None else {}
        self._seconds: dict[str, dict[str, list[float]]] = {
            form: defaultdict(list) for form in ("float", "graph", "program")
        }

    @property
    def on_gpu(self) -> bool:
        return any(isinstance(x, Tensor) and x.is_cuda for x in self._bound.values())

    def call_of_int8(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the inputs of a call as the int8 model takes them: quantized, where it takes quantized values."""
        return call_as_taken(self._int8, args, kwargs)

    def round(self) -> None:
        """Run each model once, in each form."""
        self._take("float", TimedRun(self._floats, self._bound, _calls(self._floats)))
        self._take("graph", TimedRun(self._int8, self._taken, _calls(self._int8)))
        if self._programs is not None:
            self._take("program", TimedPrograms(self._int8, self._taken, _calls(self._int8), self._programs))

    def _take(self, form: str, run: TimedRun) -> None:
        run.run()
        for name, seconds in run.seconds.items():
            self._seconds[form][name].append(seconds)

    def rows(self, prepared: Quantizer, int8: GraphModule) -> tuple[ProfileRow, ...]:
        """Return every call of the int8 model, the most expensive first."""
        medians = {
            form: {name: 1e6 * statistics.median(times) for name, times in nodes.items()}
            for form, nodes in self._seconds.items()
        }
        floats, graph, runs = medians["float"], medians["graph"], medians["program"] or medians["graph"]
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
            kind: Kind = (
                "unit" if unit is not None else "border" if isinstance(module_of(node), BOUNDARIES) else "float"
            )
            in_float = [floats[member.name] for member in members if member.name in floats]
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
