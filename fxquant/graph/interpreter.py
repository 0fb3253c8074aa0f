"""Runs a graph on inputs, node by node, with errors that name the node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch.fx import GraphModule, Interpreter, Node
from torch.fx.immutable_collections import immutable_dict, immutable_list

from fxquant.errors import FxQuantError
from fxquant.graph.failures import does_not_run


class BoundInterpreter(Interpreter):
    """Runs a graph on inputs that ``graph.inputs.bind`` gave, ``*args`` and ``**kwargs`` among them: ``run()``.

    Calibration and measurements subclass it: they compute values in another way by ``compute``, or by the methods of
    ``torch.fx.Interpreter`` for each kind of node. ``runtime/compiling.py`` has a walk of its own, and converted models
    run generated code.

    Raises:
        InputError: a node fails; the message names it, and says what it was given.
    """

    def __init__(self, gm: GraphModule, bound: Mapping[str, Any], *, keep_values: bool = False) -> None:
        super().__init__(gm, garbage_collect_values=not keep_values)
        self.extra_traceback = False
        self._bound = bound

    def placeholder(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._bound[str(target).lstrip("*")]

    def output(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return _plain(args[0])

    def run_node(self, n: Node) -> Any:
        try:
            return self.compute(n)
        except FxQuantError:
            raise
        except Exception as error:
            raise does_not_run(error, n, *self.fetch_args_kwargs_from_env(n)) from error

    def compute(self, n: Node) -> Any:
        """Compute the value of a node."""
        return super().run_node(n)


class WatchedRun(BoundInterpreter):
    """Runs a graph, and shows each value when it appears.

    Args:
        gm: The graph.
        bound: Its inputs, by name.
        visit: Takes a node and its value.
    """

    def __init__(self, gm: GraphModule, bound: Mapping[str, Any], visit: Callable[[Node, Any], object]) -> None:
        super().__init__(gm, bound)
        self._visit = visit

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        self._visit(n, value)
        return value


def _plain(value: Any) -> Any:
    """Lists and dicts in place of the immutable ones that graphs hold."""
    if isinstance(value, immutable_list):
        return [_plain(item) for item in value]
    if isinstance(value, immutable_dict):
        return {key: _plain(item) for key, item in value.items()}
    return tuple(_plain(item) for item in value) if type(value) is tuple else value
