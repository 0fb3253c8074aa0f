"""Graphs as data: one row per node, with what becomes of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.fx import GraphModule, Node

from fxquant.errors import user_line
from fxquant.graph.printer import format_call
from fxquant.graph.query import module_of, module_path, operator_name, value_of
from fxquant.measure.coverage import CoverageRow
from fxquant.nn.base import QuantizedModule
from fxquant.passes.instruments import qparams_notes
from fxquant.plan.quant_plan import QuantPlan, QuantUnit
from fxquant.reporting.subject import Subject

FATES: tuple[tuple[str, str, str], ...] = (
    ("int8", "int8", "computes on integers"),
    ("weight", "weight only", "its weight is stored in integers; it multiplies in float"),
    ("border", "boundary", "quantizes float values, or dequantizes"),
    ("float", "float", "stays float, and costs something"),
    ("excused", "float, as wished", "float because the configuration says so, or because nothing is lost by it"),
    ("other", "other", "an input, the output, a constant, or what is gone in the end"),
)
"""What can become of a node: name, label, meaning."""


def drawings(subject: Subject) -> list[dict[str, Any]]:
    """Return the graphs that there are, each ``{"title": …, "nodes": […]}``; nodes in topological order."""
    found = []
    if subject.float_graph is not None:
        found.append({"title": "float graph", "nodes": _nodes(subject.float_graph, subject.planned, subject)})
    if subject.converted is not None:
        integers = any(isinstance(module, QuantizedModule) for module in subject.converted.modules())
        title = "int8 graph" if integers else "quantized graph"
        found.append({"title": title, "nodes": _nodes(subject.converted, subject.plan, subject)})
    return found


def _nodes(gm: GraphModule, plan: QuantPlan, subject: Subject) -> list[dict[str, Any]]:
    rows = {row.node: row for row in subject.coverage}
    units = plan.unit_of()
    notes = qparams_notes(subject.plan)
    return [_node(node, rows, units, notes) for node in gm.graph.nodes]


def _node(
    node: Node, rows: Mapping[str, CoverageRow], units: Mapping[str, QuantUnit], notes: Mapping[str, str]
) -> dict[str, Any]:
    unit = units.get(node.name)
    row = rows.get(unit.root if unit else node.name)
    value = value_of(node)
    return {
        "name": node.name,
        "op": _operator(node),
        "call": format_call(node),
        "value": "" if value is None else str(value).replace(" ", ""),
        "module": row.module if row and row.module else module_path(node)[0],
        "line": user_line(node) or (row.line if row else ""),
        "inputs": list(dict.fromkeys(source.name for source in node.all_input_nodes)),
        "unit": unit.root if unit else "",
        "fate": _fate(node, unit, row),
        "reason": row.reason if row else "",
        "macs": row.macs if row else 0,
        "qparams": notes.get(node.name, ""),
    }


def _operator(node: Node) -> str:
    return {"placeholder": "input", "output": "output", "get_attr": "constant"}.get(node.op) or operator_name(node)


def _fate(node: Node, unit: QuantUnit | None, row: CoverageRow | None) -> str:
    if unit is not None:
        return row.fate if row is not None else "int8"
    if isinstance(module_of(node), QuantizedModule):
        return "border"
    if row is None:
        return "other"
    return "excused" if row.excused else row.fate
