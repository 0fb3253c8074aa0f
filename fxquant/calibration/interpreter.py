"""Runs the float graph over data, and shows each activation of the plan to its observer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from fxquant.errors import FxQuantError, InputError, error_context
from fxquant.graph.failures import wrong_bound_input
from fxquant.graph.inputs import describe_value
from fxquant.graph.interpreter import BoundInterpreter
from fxquant.graph.query import INPLACE, called_module, has_hooks
from fxquant.nn.simulated_recurrent import values_inside
from fxquant.observers.channel_means import ChannelMeans

IN_PLACE: dict[Any, Callable[..., Tensor]] = {
    F.relu: torch.relu_,
    F.relu6: lambda x: F.hardtanh_(x, 0.0, 6.0),
    F.hardtanh: F.hardtanh_,
    torch.add: Tensor.add_,
}
"""How to run again in place what the user wrote in place, and ``normalize`` made out-of-place."""


class CalibrationInterpreter(BoundInterpreter):
    """Runs a graph node by node, and hands values to observers as they appear.

    ``BoundInterpreter.run_node`` calls ``compute`` for each node that calls something.

    The graph is the normalized float graph that ``prepare`` made. What comes out is what the model gives, to the bit,
    but for the operators that were taken apart (see ``Quantizer``). A value is freed after its last use, so memory does
    not grow with the number of batches.

    Args:
        gm: The prepared float graph.
        bound: Its inputs, by name.
        observers: Name of a node -> the observers that see its value.
        handlers: Root of a unit -> the user's handler, whose ``observe(node, env)`` is called.
        inside: Names of nodes that call recurrent layers whose observers see all that is multiplied inside.
    """

    def __init__(
        self,
        gm: GraphModule,
        bound: Mapping[str, Any],
        observers: Mapping[str, Sequence[nn.Module]],
        handlers: Mapping[str, Any],
        inside: Collection[str] = (),
    ) -> None:
        super().__init__(gm, bound)
        self._gm = gm
        self._observers = observers
        self._handlers = handlers
        self._inside = inside

    def run(self) -> Any:  # type: ignore[override]
        try:
            return super().run()
        except FxQuantError:
            raise
        except Exception as error:  # of an observer or a handler: an input of another kind explains it better
            if (wrong := wrong_bound_input(self._gm, self._bound)) is None:
                raise
            raise wrong from error

    def run_node(self, n: Node) -> Any:
        result = super().run_node(n)
        with error_context(at=n):
            observers = self._observers.get(n.name, ())
            seen = self._seen_inside(n) if observers and n.name in self._inside else result
            for observer in observers:
                observer(result if isinstance(observer, ChannelMeans) else seen)
        if n.name in self._handlers:
            self._handlers[n.name].observe(n, Values({**self.env, n: result}))
        return result

    def _seen_inside(self, n: Node) -> Tensor:
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        return values_inside(called_module(n), *args, **kwargs)

    def compute(self, n: Node) -> Any:
        return self._in_place(n) if n.meta.get(INPLACE) and self._may_overwrite(n) else super().compute(n)

    def _may_overwrite(self, n: Node) -> bool:
        """The caller's tensors and the model's parameters are never written to."""
        source = n.args[0]
        return n.target in IN_PLACE and isinstance(source, Node) and source.op not in ("placeholder", "get_attr")

    def _in_place(self, n: Node) -> Any:
        args, _ = self.fetch_args_kwargs_from_env(n)
        if n.target is torch.add and (n.kwargs or not _same_kind(args[0], args[1])):
            return super().compute(n)
        return IN_PLACE[n.target](*args)


def _same_kind(a: Any, b: Any) -> bool:
    return isinstance(b, Tensor) and a.shape == b.shape and a.dtype == b.dtype


class Values(Mapping[Any, Any]):
    """Shows a handler the values of a run under their nodes, or under the names of these."""

    def __init__(self, env: Mapping[Node, Any]) -> None:
        self._values = {node.name: value for node, value in env.items()}

    def __getitem__(self, key: Node | str) -> Any:
        return self._values[key if isinstance(key, str) else key.name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def run_with_hooks(gm: GraphModule, run: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call ``run`` as if it were the forward of ``gm``: with the hooks that the user registered on the whole model."""
    if not has_hooks(gm):
        return run(*args, **kwargs)

    class Hooked(nn.Module):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return run(*args, **kwargs)

    stand_in = object.__new__(Hooked)
    stand_in.__dict__ = gm.__dict__  # hooks that look at the module see the model
    return nn.Module.__call__(stand_in, *args, **kwargs)


def check_like_example(bound: Mapping[str, Any], example: Mapping[str, Any], what: str) -> None:
    """Refuse inputs that lack a tensor that the example inputs held, or hold something else in its place.

    Raises:
        InputError: the message names the argument.
    """
    for name, value in example.items():
        if isinstance(value, Tensor) and not isinstance(bound.get(name), Tensor):
            raise InputError(
                f"{what} hold no tensor for the argument {name!r}",
                got=describe_value(bound.get(name)),
                expected=describe_value(value),
                hint="inputs must bind the same arguments as the example inputs that prepare was given",
            )
