"""Graphs as data: one row per node, with what becomes of it."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node

from fxquant.errors import user_line
from fxquant.graph.printer import format_call
from fxquant.graph.query import VALUE, module_of, module_path, operator_name, tensors_of, value_of
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

_PLAIN = (int, float, bool, str, torch.Size, torch.dtype, torch.device)
"""Types of values that describe tensors."""


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
        "bookkeeping": "" if unit else _bookkeeping(node),
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


def _bookkeeping(node: Node) -> str:
    """Say how a node only serves others, so that the page can leave it out; empty where it does more.

    Returns:
        ``item``: takes a tensor out of a tuple. ``plain``: gives a size or another value of ``_PLAIN``, or checks one.
    """
    if node.op in ("placeholder", "output") or VALUE not in node.meta:
        return ""
    inputs = node.all_input_nodes
    if node.target is operator.getitem and inputs and tensors_of(inputs[0]) and value_of(inputs[0]) is None:
        return "item"
    if node.meta[VALUE] is type(None):  # what returns nothing may write into a tensor
        return "plain" if inputs and not any(map(tensors_of, inputs)) else ""
    return "plain" if _is_plain(node.meta[VALUE]) else ""


def _is_plain(value: Any) -> bool:
    if isinstance(value, (tuple, dict)):
        return all(map(_is_plain, value.values() if isinstance(value, dict) else value))
    return value in _PLAIN
