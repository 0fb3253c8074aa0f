"""Writes what a model is beside its graph and its modules, and the graphs that it calls as modules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.fx import GraphModule

from fxquant.artifact.describe_quantizer import describe_quantizer
from fxquant.artifact.graph import check_identifier, encode_graph
from fxquant.artifact.plan import encode_coverage, encode_plan
from fxquant.capture.exported.branches import BRANCHES, Branches
from fxquant.graph.module import NamedGraphModule, get_metadata
from fxquant.measure.coverage import Coverage
from fxquant.quantizer.data import PreparedModel

GRAPH = "graph"
"""Type of a module that is a graph, whose nodes stand beside those of the model."""
COND = "torch.cond"
"""Type of a module that runs one of two graphs."""

FLOAT_BRANCHES = "float_branches"
"""Rows of the coverage of branches that could not be quantized, by the call of ``torch.cond``."""

INSIDE = "#inside/"
"""What the names of tensors begin with that belong to a graph inside; its path follows, and another slash."""


def describe_graph(model: GraphModule, *, facts: bool) -> dict[str, Any]:
    """Write the name of the model's class, and its nodes; with ``facts``, what is known of each."""
    name = check_identifier(type(model).__name__, "the name of the model's class")
    return {"class": name, "nodes": encode_graph(model.graph, facts=facts)}


def describe_form(
    model: GraphModule, form: str, prepared: PreparedModel | None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Write what a model of this form is beside its graph: the plan, or all that a Quantizer holds."""
    if prepared is not None:
        data, tensors = describe_quantizer(prepared)
        if left := get_metadata(model, FLOAT_BRANCHES):  # why each stays float is said by its rows
            data[FLOAT_BRANCHES] = [[call, encode_coverage(Coverage(rows))] for call, rows in left.items()]
        return {"preparation": data}, tensors
    if form == "float":
        return {}, {}
    plan, tensors = encode_plan(get_metadata(model, "quant_plan"))
    return {
        "plan": plan,
        "integers": [list(get_metadata(model, f"integer_{way}") or {}) for way in ("inputs", "outputs")],
        "coverage": encode_coverage(get_metadata(model, "quant_coverage")),
    }, tensors


def describe_inside(model: GraphModule, prepared: PreparedModel | None) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Write the graphs that a model calls: branches of ``torch.cond``, and modules that were converted by themselves.

    Args:
        model: The graph around them.
        prepared: Of a prepared model.

    Returns:
        ``inside``, a description for each path, each behind the one around it; and tensors by name. Where there are no
        such graphs, nothing.
    """
    quantizers = {} if prepared is None else dict(_quantizers(prepared))
    first = {id(module): path for path, module in model.named_modules()}
    found: dict[str, Any] = {}
    tensors: dict[str, Tensor] = {}
    for called, inner in graphs_inside(model):
        own, path = quantizers.get(called), first[id(inner)]
        if path in found:
            continue
        kind = "prepared" if own is not None else get_metadata(inner, "quant_form") or "float"
        data, more = describe_form(inner, kind, own)
        found[path] = {"kind": kind, **describe_graph(inner, facts=own is not None), **data}
        tensors |= {f"{INSIDE}{path}/{name}": value for name, value in more.items()}
    return ({"inside": found} if found else {}), tensors


def graphs_inside(model: GraphModule, prefix: str = "") -> Iterator[tuple[str, GraphModule]]:
    """Yield the graphs that a model calls as modules, each once, with their paths, and those that they call."""
    for target in dict.fromkeys(str(node.target) for node in model.graph.nodes if node.op == "call_module"):
        called = model.get_submodule(target)
        children = {target: called}
        if isinstance(called, Branches):
            children = {f"{target}.{name}": called.get_submodule(name) for name in BRANCHES}
        for path, inner in children.items():
            if isinstance(inner, NamedGraphModule):
                yield prefix + path, inner
                yield from graphs_inside(inner, f"{prefix}{path}.")


def _quantizers(prepared: PreparedModel, prefix: str = "") -> Iterator[tuple[str, PreparedModel]]:
    """Yield what was prepared of each branch, with its path."""
    for (path, name), inner in prepared.branches.items():
        yield f"{prefix}{path}.{name}", inner
        yield from _quantizers(inner, f"{prefix}{path}.{name}.")
