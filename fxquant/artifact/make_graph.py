"""Makes models of graphs, once all modules are there: with the plan, or with all that a Quantizer holds."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor

from fxquant.artifact.describe_graph import COND, FLOAT_BRANCHES, GRAPH, INSIDE
from fxquant.artifact.graph import check_path, decode_graph
from fxquant.artifact.integers import note_integers
from fxquant.artifact.make_quantizer import make_quantizer
from fxquant.artifact.plan import decode_coverage, decode_plan
from fxquant.capture.exported.branches import BRANCHES, Branches
from fxquant.errors import ArtifactError
from fxquant.graph.module import NamedGraphModule, set_metadata
from fxquant.quantizer.branches import note_branch_rows
from fxquant.runtime import attach_engine

CONVERTED = ("int8", "reference", "fake_quant")
_OF_GRAPH = {"class", "nodes"}
_OF_CONVERTED = {"plan", "coverage", "integers"}


def fields_of_kind(kind: str) -> set[str]:
    """Return what a description of a model of this kind has beside its graph."""
    return {"float": set(), "prepared": {"preparation"}}.get(kind, _OF_CONVERTED)


def checked_inside(data: Any, described: Mapping[str, Any], kind: str, nodes: int) -> dict[str, Any]:
    """Return the descriptions of the graphs inside, each behind the one around it.

    Raises:
        ArtifactError: they are not those of the modules that are graphs, or have other fields than their kind.
    """
    graphs = {path for path, item in described.items() if item.get("type") == GRAPH}
    if not isinstance(data, dict) or set(data) != graphs:
        raise ArtifactError(
            "the file holds other graphs than its modules are", got=ascii(sorted(graphs ^ set(data)))[:200]
        )
    kinds = {"float", *CONVERTED, *({kind} & {"prepared"})}
    for path, item in data.items():
        own = item.get("kind") if isinstance(item, dict) else None
        if own not in kinds or set(item) != {"kind", *_OF_GRAPH, *fields_of_kind(own)}:
            raise ArtifactError("a graph in the file has other fields", at=f"module {path}")
        nodes -= len(item["nodes"]) if isinstance(item["nodes"], list) else 0
    if nodes < 0:
        raise ArtifactError("the graphs in the file have more nodes than allowed")
    for path, item in described.items():
        if item.get("type") == COND and (
            item["config"] != {} or item["tensors"] != [] or not all(f"{path}.{name}" in data for name in BRANCHES)
        ):
            raise ArtifactError("a torch.cond in the file has no two graphs", at=f"module {path}")
    return data


def set_graphs(
    model: NamedGraphModule, data: Mapping[str, Any], modules: Collection[str], tensors: Collection[str]
) -> None:
    """Give the graphs inside their nodes. What they call and read lies below their own path."""
    for path, item in data.items():
        inner: Any = model.get_submodule(check_path(path))
        below = f"{path}."
        own = [{name.removeprefix(below) for name in names if name.startswith(below)} for names in (modules, tensors)]
        inner.graph = decode_graph(item["nodes"], *own)
        inner.graph.lint()


def note_plan(
    model: NamedGraphModule, kind: str, data: Mapping[str, Any], tensors: Mapping[str, Tensor], nodes: int
) -> None:
    """Say by which plan a converted model was made, and what it takes and gives as integers."""
    plan = decode_plan(data["plan"], tensors, nodes)
    set_metadata(model, quant_form=kind, quant_plan=plan, quant_coverage=decode_coverage(data["coverage"], nodes))
    note_integers(model, plan, data.get("integers", [[], []]))


def finish_inside(model: NamedGraphModule, data: Mapping[str, Any], tensors: Mapping[str, Tensor], nodes: int) -> None:
    """Make the converted graphs inside what ``convert`` made: their plans are known, and their programs are run."""
    for path, item in data.items():
        inner: Any = model.get_submodule(path)
        if item["kind"] in ("float", "prepared"):
            continue
        note_plan(inner, item["kind"], item, _below(tensors, path), nodes)
        if isinstance(model.get_submodule(path.rpartition(".")[0]), Branches):
            set_metadata(inner, is_branch=True)
        attach_engine(inner, None, item["kind"])


def make_quantizers(
    model: NamedGraphModule,
    data: Mapping[str, Any],
    inside: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    nodes: int,
    size: int,
) -> Any:
    """Make a Quantizer, and one of each branch that was prepared.

    Raises:
        ArtifactError: the file describes none, or one of a graph that is no branch.
    """
    made = {"": _make(model, data, tensors, nodes, size)}
    for path, item in inside.items():
        if item["kind"] != "prepared":
            continue
        called, _, name = path.rpartition(".")
        around = next((outer for outer in (*_prefixes(called), "") if outer in made and outer != path), "")
        if not isinstance(model.get_submodule(called), Branches):
            raise ArtifactError("the file holds a prepared model that is no branch", at=f"module {path}")
        graph: Any = model.get_submodule(path)
        made[path] = _make(graph, item["preparation"], _below(tensors, path), nodes, size)
        made[around].branches[called.removeprefix(f"{around}."), name] = made[path]
    for one in reversed(made.values()):  # the rows of a model hold those of the branches inside
        note_branch_rows(one)
    return made[""]


def _make(gm: NamedGraphModule, data: Any, tensors: Mapping[str, Tensor], nodes: int, size: int) -> Any:
    """Make a Quantizer, whose graph knows why branches stay float."""
    rows = dict(data) if isinstance(data, dict) else {}
    left = rows.pop(FLOAT_BRANCHES, [])
    made = make_quantizer(rows, tensors, gm, nodes, size)
    if not isinstance(left, list) or not all(isinstance(item, list) and len(item) == 2 for item in left):
        raise ArtifactError("the file holds no coverage that can be read")
    names = {node.name for node in gm.graph.nodes}
    if unknown := [call for call, _ in left if not isinstance(call, str) or call not in names]:
        raise ArtifactError("the file holds the branches of a call that is none", got=ascii(unknown[0])[:120])
    if left:
        found = {call: decode_coverage(data, nodes).rows for call, data in left}
        set_metadata(made.graph_module, **{FLOAT_BRANCHES: found})
    return made


def _prefixes(path: str) -> list[str]:
    """Return the paths that a path lies below, the nearest first."""
    parts = path.split(".")
    return [".".join(parts[:count]) for count in range(len(parts) - 1, 0, -1)]


def _below(tensors: Mapping[str, Tensor], path: str) -> dict[str, Tensor]:
    prefix = f"{INSIDE}{path}/"
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
