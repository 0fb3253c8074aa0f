"""A branch on the value of a tensor, ``torch.cond``: a module that runs one of two graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree

from fxquant.capture.exported.inline import copy_into
from fxquant.graph.module import NamedGraphModule
from fxquant.graph.query import CALLED, attribute_at

REASON_OF_BRANCHES = "which branch of torch.cond runs is known in each call alone, so it takes and gives float values"

BRANCHES = ("when_true", "when_false")
"""Names of the two children of ``Branches``."""


class Branches(nn.Module):
    """Runs the graph of one of two branches.

    Args:
        when_true: The graph of the first branch.
        when_false: That of the second.
    """

    def __init__(self, when_true: nn.Module, when_false: nn.Module) -> None:
        super().__init__()
        self.when_true = when_true
        self.when_false = when_false

    def forward(self, condition: Tensor | bool, *operands: Any) -> Any:
        """Run the branch that the condition says on the operands; both are in the program of an export."""
        if torch.compiler.is_compiling() and isinstance(condition, Tensor):
            return torch.cond(condition, self.when_true, self.when_false, operands)
        return self.when_true(*operands) if condition else self.when_false(*operands)


def move_under(branches: Branches, path: str) -> None:
    """Move, in place, what the graphs of both branches call and read below a path: that of a submodule of the model."""
    for name in BRANCHES:
        gm: Any = branches.get_submodule(name)
        holder = inner = nn.Module()
        for part in path.split("."):
            child = nn.Module()
            inner.add_module(part, child)
            inner = child
        for held in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            setattr(inner, held, getattr(gm, held))
        for each in inner.modules():
            if isinstance(each, Branches):
                move_under(each, path)
        for node in gm.graph.nodes:
            if node.op in ("call_module", "get_attr"):
                node.target = f"{path}.{node.target}"
            if CALLED in node.meta:
                node.meta[CALLED] = f"{path}.{node.meta[CALLED][0]}", node.meta[CALLED][1]
        branches.add_module(name, NamedGraphModule(holder.eval(), gm.graph, type(gm).__name__))


class FlatSpec:
    """Structure of a graph that takes tensors by position and gives a tuple of tensors.

    Args:
        names: Of its inputs.
        results: How many values it gives.
    """

    def __init__(self, names: Sequence[str], results: int) -> None:
        self.orig_args = list(names)
        self.in_spec = pytree.tree_structure(((0,) * len(names), {}))
        self.out_spec = pytree.tree_structure((0,) * results)


def branches_of(node: Node, program: nn.Module) -> tuple[tuple[GraphModule, GraphModule], tuple[Any, ...]] | None:
    """Return the graphs of a call of ``torch.cond``, and what it is called with; None for other nodes.

    Parameters and constants among the operands are read by the graphs themselves, at the paths that they have in the
    program.

    Args:
        node: Any node of the program.
        program: The program's module, without graphs that can be inlined.
    """
    target: Any = node.target
    if not isinstance(target, torch._ops.HigherOrderOperator) or target.__name__ != "cond":
        return None
    condition, *graphs, operands = node.args
    given: Any = operands
    inner = [str(graph.target) for graph in graphs if isinstance(graph, Node)]
    first, second = (_with_own_tensors(program, path, given) for path in inner)
    return (first, second), (condition, *(one for one in given if not _is_tensor(one, program)))


def _is_tensor(operand: Any, program: nn.Module) -> bool:
    if not isinstance(operand, Node) or operand.op != "get_attr":
        return False
    return isinstance(attribute_at(program, str(operand.target)), Tensor)


def _with_own_tensors(program: Any, path: str, operands: Sequence[Any]) -> GraphModule:
    """Return the graph at a path, in which operands that are tensors of the program are no inputs."""
    inner: Any = program.get_submodule(path)
    graph = Graph()
    known: dict[Node, Any] = {}
    for taken, given in zip([one for one in inner.graph.nodes if one.op == "placeholder"], operands, strict=True):
        own = _is_tensor(given, program)
        known[taken] = graph.get_attr(given.target) if own else graph.placeholder(taken.name)
        known[taken].meta = dict(taken.meta)
    graph.output(copy_into(graph, program, path, known))
    return GraphModule(program, graph)
