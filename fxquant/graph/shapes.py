"""Runs the example through a graph once, and writes down what each value was."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from fxquant.errors import FxQuantError
from fxquant.graph.failures import not_running
from fxquant.graph.inputs import bind
from fxquant.graph.interpreter import BoundInterpreter
from fxquant.graph.macs import run_counted
from fxquant.graph.query import (
    VALUE,
    TensorInfo,
    UnknownShape,
    attribute_at,
    described,
    info_of,
    is_shape_query,
    module_of,
)

Visit = Callable[[Node, Any], None]


def record_values(gm: GraphModule, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Run the example, and write what every value was (``info_of``) to its node.

    Raises:
        InputError: the example does not run; the message names the node, the user's line, and what it was given.
    """

    def write(node: Node, value: Any) -> None:
        node.meta[VALUE] = info_of(value)

    run_example(gm, args, kwargs, write)


_LISTS = ("split", "chunk", "unbind", "tensor_split", "split_with_sizes")
"""Functions and methods that give several tensors."""

_DTYPES = {
    torch.bool: ("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_not", "isnan", "bool"),
    torch.int64: ("argmax", "argmin", "argsort", "long", "int", "arange", "randint"),
}
"""Functions and methods that give no floats."""

_FLOAT = TensorInfo(UnknownShape(), torch.float32, torch.device("cpu"))

_SEVERAL: dict[type[nn.Module], Any] = {
    nn.LSTM: (_FLOAT, (_FLOAT, _FLOAT)),
    **dict.fromkeys((nn.GRU, nn.RNN, nn.LSTMCell, nn.MultiheadAttention), (_FLOAT, _FLOAT)),
}
"""Layers that do, and what they give."""


def assume_values(gm: GraphModule) -> None:
    """Write to each node what can be told of its value without running it: float tensors of no known shape, sizes."""
    for node in gm.graph.nodes:
        if node.op == "output":
            node.meta[VALUE] = described(node.args[0])
        elif node.op == "get_attr":
            node.meta[VALUE] = info_of(attribute_at(gm, str(node.target)))
        else:
            node.meta[VALUE] = _assumed(node)


def _assumed(node: Node) -> Any:
    inputs = [value for value in node.all_input_nodes if VALUE in value.meta]
    if is_shape_query(node):
        several = node.target is getattr or (node.target == "size" and len(node.args) == 1)
        return torch.Size if several else int
    if inputs and node.op == "call_function" and all(isinstance(value.meta[VALUE], type) for value in inputs):
        return int  # what is computed of sizes
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    for kind, values in _SEVERAL.items():
        if isinstance(module_of(node), kind):
            return values
    if node.op != "call_module" and name in _LISTS:
        return ()
    source = inputs[0].meta[VALUE] if inputs and node.target is operator.getitem else None
    if isinstance(source, tuple) and isinstance(node.args[1], int) and node.args[1] < len(source):
        return source[node.args[1]]
    dtype = next((kind for kind, names in _DTYPES.items() if name.strip("_") in names), torch.float32)
    return replace(_FLOAT, dtype=dtype)


def run_example(gm: GraphModule, args: tuple[Any, ...], kwargs: Mapping[str, Any], visit: Visit) -> Any:
    """Run ``gm`` on clones of the inputs, without gradients, and call ``visit(node, value)`` after every node.

    Leaves no trace: buffers (running statistics) and the state of the random generator are put back.

    Returns:
        The output of ``gm``.

    Raises:
        InputError: the inputs do not fit, or a node fails on them.
    """
    args, kwargs = pytree.tree_map_only(Tensor, _clone, (args, dict(kwargs)))
    bound = bind(gm, args, kwargs, "the example inputs")
    with torch.no_grad(), unchanged_state(gm):
        return _ExampleRun(gm, bound, visit).run()


def _clone(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


@contextmanager
def unchanged_state(module: nn.Module) -> Iterator[None]:
    """Put back, at the end, buffers and submodules' attributes, and the random generators of the devices it is on."""
    tensors = [*module.parameters(), *module.buffers()]
    saved = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    attributes = [(vars(inner), dict(vars(inner))) for inner in module.modules() if inner is not module]
    devices = sorted({tensor.device.index or 0 for tensor in tensors if tensor.device.type == "cuda"})
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            for buffer, value in saved:
                buffer.data = value
            for now, before in attributes:
                now.clear()
                now.update(before)


def run_on_example(
    node: Node, module: nn.Module | None, run: Callable[[], Any], given: Callable[[], tuple[Any, Any]]
) -> Any:
    """Run the call of a node on the example, and note its multiply-accumulates.

    Args:
        node: Its metadata are written to.
        module: The module that it calls; None for a function or a method.
        run: Calls it.
        given: Gives the positional and the keyword arguments of the call, for the message.

    Raises:
        InputError: the call fails; the message names the node, the user's line, and the arguments.
    """
    try:
        return run_counted(node, module, run)
    except FxQuantError:
        raise
    except Exception as error:
        raise not_running(node, module, error, *given()) from error


class _ExampleRun(BoundInterpreter):
    def __init__(self, gm: GraphModule, bound: Mapping[str, Any], visit: Visit) -> None:
        super().__init__(gm, bound)
        self._visit = visit

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        self._visit(n, value)
        return value

    def compute(self, n: Node) -> Any:
        return run_on_example(
            n,
            module_of(n),
            lambda: super(_ExampleRun, self).compute(n),
            lambda: self.fetch_args_kwargs_from_env(n),
        )
