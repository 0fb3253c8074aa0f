"""``fuse_fx``: makes one module of a layer and what follows it."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule, Node
from torch.nn import functional as F

from fxquant.capture.tracer import QuantTracer
from fxquant.compat.fusion_rows import default_rows

_RELUS = {F.relu: nn.ReLU, torch.relu: nn.ReLU}
"""Functions that are fused as modules."""


def fused(model: nn.Module, backend: Any) -> GraphModule:
    """Return a traced copy of a model in evaluation mode, whose modules are fused.

    Args:
        model: It is not changed.
        backend: A ``BackendConfig`` whose patterns have fuser methods; None: those that torch.ao fuses by default.
    """
    own = copy.deepcopy(model)
    gm = GraphModule(own, own.graph if isinstance(own, GraphModule) else QuantTracer().trace(own), type(model).__name__)
    rows = default_rows() if backend is None else [row for row in backend.configs if row.fuser_method is not None]
    rows.sort(key=lambda row: -_size(_nested(row)))
    for node in reversed(list(gm.graph.nodes)):
        if node.graph is not gm.graph or node._erased:
            continue
        for row in rows:
            found = _match(gm, node, _nested(row), is_last=True)
            if found is not None and not _is_used_elsewhere(gm, _root(row, found)):
                _fuse(gm, node, found, row)
                break
    gm.delete_all_unused_submodules()
    gm.recompile()
    return gm


def _nested(row: Any) -> Any:
    """Return the pattern with the last operator first, and what it reads after it."""
    if row._pattern_complex_format is not None:
        return row._pattern_complex_format
    pattern = row.pattern if isinstance(row.pattern, tuple) else (row.pattern,)
    nested: Any = pattern[0]
    for operator in pattern[1:]:
        nested = (operator, nested)
    return nested


def _size(pattern: Any) -> int:
    return sum(map(_size, pattern)) if isinstance(pattern, tuple) else 1


def _match(gm: GraphModule, node: Any, pattern: Any, is_last: bool = False) -> Any:
    """Return the nodes in the form of the pattern; None where they are others."""
    if getattr(pattern, "__name__", "") == "MatchAllNode":
        return node
    if not isinstance(node, Node) or (not is_last and len(node.users) > 1):
        return None
    operator, *sources = pattern if isinstance(pattern, tuple) else (pattern,)
    if not _is_call_of(gm, node, operator):
        return None
    if not isinstance(pattern, tuple):
        return node
    if len(node.args) < len(sources):
        return None
    inner = [_match(gm, value, source) for value, source in zip(node.args, sources, strict=False)]
    return None if any(found is None for found in inner) else (node, *inner)


def _is_call_of(gm: GraphModule, node: Node, operator: Any) -> bool:
    if node.op == "call_module":
        return isinstance(operator, type) and type(gm.get_submodule(str(node.target))) is operator
    return node.op in ("call_function", "call_method") and node.target is operator


def _root(row: Any, found: Any) -> Node:
    """Return the node that reads the input."""
    root: Node = row._root_node_getter(found) if row._root_node_getter is not None else _innermost(found)
    return root


def _is_used_elsewhere(gm: GraphModule, root: Node) -> bool:
    """Tell whether other nodes call the module of ``root``, by any name, or read its parameters.

    The fused module would take its place there, too. Modules after it, such as one ReLU for all layers, may be shared.
    """
    if root.op != "call_module":
        return False
    inside = set(gm.get_submodule(str(root.target)).modules())
    for node in gm.graph.nodes:
        path = str(node.target)
        if node is root or node.op not in ("call_module", "get_attr"):
            continue
        if node.op == "call_module" and not inside.isdisjoint(gm.get_submodule(path).modules()):
            return True
        if node.op == "get_attr" and gm.get_submodule(path.rpartition(".")[0]) in inside:
            return True
    return False


def _fuse(gm: GraphModule, last: Node, found: Any, row: Any) -> None:
    # The module that stands for all of them takes the place of the one that reads the input.
    root = _root(row, found)
    modules = _modules(gm, found)
    if row._pattern_complex_format is None:
        arguments: tuple[Any, ...] = tuple(reversed(_flat(modules)))
    else:
        arguments = modules
    made = row.fuser_method(False, *arguments)
    gm.set_submodule(str(root.target), made)
    # It reads what the root reads, and what the pattern says that it reads beside.
    more = row._extra_inputs_getter(found) if row._extra_inputs_getter is not None else []
    with gm.graph.inserting_before(last):
        call = gm.graph.call_module(str(root.target), (*root.args, *more))
    last.replace_all_uses_with(call)
    for node in _flat(found):
        if isinstance(node, Node) and not node.users and node.op != "placeholder" and node not in more:
            gm.graph.erase_node(node)
            called = {str(other.target) for other in gm.graph.nodes if other.op in ("call_module", "get_attr")}
            if node.op == "call_module" and not any(f"{path}.".startswith(f"{node.target}.") for path in called):
                gm.delete_submodule(str(node.target))  # torch.fx misses modules that have two names


def _innermost(found: Any) -> Node:
    while isinstance(found, tuple):
        found = found[-1]
    node: Node = found
    return node


def _modules(gm: GraphModule, found: Any) -> Any:
    if isinstance(found, tuple):
        return tuple(_modules(gm, item) for item in found)
    if found.op == "call_module":
        return gm.get_submodule(str(found.target))
    made = _RELUS.get(found.target)
    return found.target if made is None else made().train(gm.training)


def _flat(found: Any) -> list[Any]:
    return [item for part in found for item in _flat(part)] if isinstance(found, tuple) else [found]
