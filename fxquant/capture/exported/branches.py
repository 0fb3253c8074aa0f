"""A branch on the value of a tensor, ``torch.cond``: a module that runs one of two graphs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

REASON_OF_BRANCHES = "which branch of torch.cond runs is known in each call alone, so both stay float"


class Branches(nn.Module):
    """Runs the graph of one of two branches.

    Args:
        when_true: The graph of the first branch.
        when_false: That of the second.
    """

    def __init__(self, when_true: GraphModule, when_false: GraphModule) -> None:
        super().__init__()
        self.when_true = when_true
        self.when_false = when_false

    def forward(self, condition: Tensor | bool, *operands: Any) -> Any:
        """Run the branch that the condition says on the operands."""
        return self.when_true(*operands) if condition else self.when_false(*operands)


def branches_of(node: Node, program: nn.Module) -> tuple[Branches, tuple[Any, ...]] | None:
    """Return the module that a call of ``torch.cond`` is, and what it is called with; None for other nodes."""
    target: Any = node.target
    if not isinstance(target, torch._ops.HigherOrderOperator) or target.__name__ != "cond":
        return None
    condition, *graphs, operands = node.args
    first, second = (program.get_submodule(str(graph.target)) for graph in graphs if isinstance(graph, Node))
    assert isinstance(first, GraphModule)
    assert isinstance(second, GraphModule)
    given: Any = operands
    return Branches(first, second), (condition, *given)
