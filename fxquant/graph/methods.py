"""Methods of the user's class on a traced model: what they may use of it, and what is no longer there to be used."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.fx import GraphModule

from fxquant.errors import MethodError

BESIDE = "_beside_forward"
"""Attribute of a traced module: modules without state that its forward does not use, but methods may: a loss, say."""


def modules_beside(model: nn.Module, gm: GraphModule) -> dict[str, nn.Module]:
    """The modules of ``model`` itself that belong under ``BESIDE``."""
    unused = {name: module for name, module in model._modules.items() if module is not None and not hasattr(gm, name)}
    return {name: module for name, module in unused.items() if not module.state_dict()}


class TracedSelf:
    """What such a method gets as ``self``: the traced model, without the layers that its graph has made its own.

    ``self(x)`` runs the graph. Batch norms, activations and residuals may be inside of a layer that has become
    integers, so that calling that layer alone would give something else than the float one: it raises instead.
    """

    def __init__(self, gm: GraphModule, name: str) -> None:
        object.__setattr__(self, "_traced", gm)
        object.__setattr__(self, "_method", name)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self._traced)

    def __getattr__(self, name: str) -> Any:
        gm: GraphModule = object.__getattribute__(self, "_traced")
        if name in vars(gm).get(BESIDE, {}):
            return vars(gm)[BESIDE][name]
        if (module := gm._modules.get(name)) is not None and not _is_whole(module):
            raise self._no_part(name, "it is part of the graph now, and does not run by itself")
        try:
            return getattr(gm, name)
        except AttributeError as error:
            raise self._no_part(name, "the graph does not use it, so it was left out") from error

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._traced, name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._traced(*args, **kwargs)

    def _no_part(self, name: str, why: str) -> MethodError:
        return MethodError(
            f"the method {self._method!r} needs self.{name}, which this model has not as the float model had it: {why}",
            at=f"{type(self._traced).__name__}.{self._method}",
            expected="a method that calls self(...), and uses attributes",
            hint=f"let forward return what {self._method!r} wants; or quantize the part that it runs by itself",
        )


def _is_whole(module: nn.Module) -> bool:
    """Whether a module of a graph still computes what it did in the user's model."""
    inner = list(module.modules())
    return not any(type(one) is nn.Module or type(one).__module__.startswith("fxquant.") for one in inner)
