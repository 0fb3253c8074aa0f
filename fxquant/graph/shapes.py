"""Runs the example through a graph once, and writes down what each value was."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from fxquant.errors import FxQuantError
from fxquant.graph.failures import not_running
from fxquant.graph.inputs import bind
from fxquant.graph.interpreter import WatchedRun
from fxquant.graph.macs import run_counted
from fxquant.graph.query import VALUE, info_of, module_of

Visit = Callable[[Node, Any], None]


def record_values(gm: GraphModule, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Run the example, and write what every value was (``info_of``) to its node.

    Raises:
        InputError: the example does not run; the message names the node, the user's line, and what it was given.
    """

    def write(node: Node, value: Any) -> None:
        node.meta[VALUE] = info_of(value)

    run_example(gm, args, kwargs, write)


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


class _ExampleRun(WatchedRun):
    def compute(self, n: Node) -> Any:
        return run_on_example(
            n,
            module_of(n),
            lambda: super(_ExampleRun, self).compute(n),
            lambda: self.fetch_args_kwargs_from_env(n),
        )
