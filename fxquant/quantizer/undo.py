"""What a run of a graph may have changed is put back: all of it if the run fails, written buffers after calibration."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

from torch import nn
from torch.fx import GraphModule, Node

from fxquant.graph.aliases import Roots, changed_values, roots_of
from fxquant.graph.module_state import undone_on_error, values_undone
from fxquant.graph.query import module_of
from fxquant.passes.cleanup import has_effect


class RunState:
    """Finds once what observing a run of a prepared graph may change, and puts it back wherever a run fails.

    That is what observers and handlers hold, buffers that the graph writes to, and the state of modules that were kept
    whole, which may count their calls. No activation is copied, and no weight.

    Args:
        gm: The prepared float graph.
        observers: All observers, in one module.
        handlers: The users' handlers.
    """

    def __init__(self, gm: GraphModule, observers: nn.Module, handlers: Iterable[Any]) -> None:
        self._gm = gm
        self._observers = observers
        self._handlers = tuple(handlers)
        self._modules = _modules_with_state(gm)
        self.buffers = _buffers_written(gm)

    def undone_on_error(self) -> AbstractContextManager[None]:
        """Put all of it back if the body raises."""
        held = [value for handler in self._handlers for value in getattr(handler, "__dict__", {}).values()]
        inside = [module for value in held if isinstance(value, nn.Module) for module in value.modules()]
        written = [self._gm.get_buffer(name) for name in self.buffers]
        holders = (*self._observers.modules(), *self._handlers, *inside, *self._modules)
        return undone_on_error(holders, (*self._observers.parameters(), *written))

    def buffers_undone(self) -> AbstractContextManager[None]:
        """Put the buffers that the graph writes to back when the body ends."""
        return written_buffers_undone(self._gm)


def written_buffers_undone(gm: GraphModule) -> AbstractContextManager[None]:
    """Put the buffers that a graph writes to back when the body ends: a cache, a stream's past.

    Modules that were kept whole keep their state, which may be what they measure.
    """
    return values_undone([gm.get_buffer(name) for name in _buffers_written(gm)])


def _modules_with_state(gm: GraphModule) -> list[nn.Module]:
    called = [module_of(node) for node in gm.graph.nodes if node.op == "call_module" and has_effect(node)]
    return [inner for module in called if module is not None for inner in module.modules()]


def _buffers_written(gm: GraphModule) -> list[str]:
    """Return the names of the buffers that the graph itself writes to."""
    changed = [value for node in gm.graph.nodes for value in changed_values(node)]
    known: dict[Node, Roots] = {}
    for node in gm.graph.nodes if changed else ():
        known[node] = roots_of(node, known)
    names = {root[1] for argument in changed for root in known[argument] if isinstance(root, tuple)}
    return [name for name, _ in gm.named_buffers() if name in names]
