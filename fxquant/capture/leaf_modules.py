"""Models that are traced already: their graph is taken as it is, if it is one of torch.fx."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.fx import GraphModule

from fxquant.errors import InputError, TracingError, listing


def check_taken(gm: GraphModule, leaf_modules: Sequence[type[nn.Module] | str]) -> None:
    """Refuse a graph of ``torch.export``, and to keep whole what a graph has taken apart.

    Raises:
        TracingError: the graph calls the operators of ATen, which no pattern names.
        InputError: ``leaf_modules`` names a module that is no call of the graph.
    """
    low = [node for node in gm.graph.nodes if isinstance(node.target, torch._ops.OpOverload)]
    if any(node.target.namespace == "aten" for node in low):
        raise TracingError(
            "the model is a graph of torch.export, which calls operators of ATen in place of modules",
            got=listing(list(dict.fromkeys(str(node.target) for node in low))[:5]),
            expected="a torch.nn.Module, or a GraphModule of torch.fx.symbolic_trace",
            hint="give the model that torch.export.export was given",
        )
    paths = [str(node.target) for node in gm.graph.nodes if node.op == "call_module"]
    called = {path: gm.get_submodule(path) for path in paths}
    for item in leaf_modules:
        if item in called or (isinstance(item, type) and any(isinstance(each, item) for each in called.values())):
            continue
        raise InputError(
            "the model is traced already, and its graph has taken apart what leaf_modules names",
            got=repr(item) if isinstance(item, str) else item.__name__,
            expected="a module that the graph calls",
            hint="give the model that was traced, or trace it with a Tracer whose is_leaf_module keeps that whole",
        )
