"""What the explicit form quantizes on some inputs, call by call: names for the graph, and integers to compare with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fxquant.exporting.program import running
from fxquant.graph.inputs import bind

QUANTIZE_SUFFIX = "_quantize"


@dataclass(frozen=True, slots=True)
class Quantized:
    """One value that was quantized."""

    name: str
    """Of the node of the model that did it; without the ending of what only quantizes."""
    integers: Tensor


class _Calls(TorchDispatchMode):
    """Keeps what quantizes per tensor give."""

    def __init__(self) -> None:
        super().__init__()
        self.node = ""
        self.found: list[Quantized] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.quantized_decomposed.quantize_per_tensor.default:
            self.found.append(Quantized(self.node.removesuffix(QUANTIZE_SUFFIX), result))
        return result


class _Interpreter(Interpreter):
    """Tells the mode which node runs. Inputs are found by name: by position, ``*args`` would take all that follow."""

    def __init__(self, model: GraphModule, calls: _Calls, bound: Mapping[str, Any]) -> None:
        super().__init__(model)
        self.bound = bound
        self.extra_traceback = False  # it would be written into the error
        self.calls = calls

    def placeholder(self, target: Any, args: Any, kwargs: Any) -> Any:
        name = str(target)
        return self.bound.get(name.lstrip("*"), {} if name.startswith("**") else ())

    def run_node(self, n: Node) -> Any:
        self.calls.node = n.name
        return super().run_node(n)


def tensors_in(tree: Any) -> list[Tensor]:
    """List the tensors of a structure of inputs or outputs."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def record(model: GraphModule, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Quantized], Any]:
    """Return what ``quantize_per_tensor`` gave in each call, in the order of the calls, and what the model gave.

    Args:
        model: An explicit one.
        args, kwargs: Its inputs.

    Raises:
        InputError: they do not run.
    """
    calls = _Calls()
    with running(args, kwargs), torch.no_grad(), calls:
        bound = bind(model, tuple(args), kwargs, "the example inputs")
        outputs = _Interpreter(model, calls, bound).run()
    return calls.found, outputs
