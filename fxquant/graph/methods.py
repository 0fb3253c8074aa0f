"""Methods of the user's class on a traced model: what they may use of it, and what is no longer there to be used."""

from __future__ import annotations

import copy
import functools
import importlib
import types
from collections.abc import Iterable, Iterator
from typing import Any, SupportsIndex, cast

from torch import nn
from torch.fx import GraphModule

from fxquant.errors import MethodError

UNUSED_MODULES = "fxquant.beside_forward"
"""Attribute of a traced module: modules without state that its forward does not use, but methods may: a loss, say."""


class UsersClass:
    """A class that travels by name, so that a model can be unpickled where its source code is not."""

    def __init__(self, kind: type) -> None:
        self._kind: type | None = kind
        self._path = kind.__module__, kind.__qualname__

    def find(self) -> type | None:
        """Return the class; None where it cannot be imported."""
        if self._kind is None:
            module, name = self._path
            try:
                found: Any = importlib.import_module(module)
                self._kind = functools.reduce(getattr, name.split("."), found)
            except (ImportError, AttributeError):
                return None
        return self._kind

    def __getstate__(self) -> dict[str, Any]:
        return {"_kind": None, "_path": self._path}

    def __deepcopy__(self, memo: dict[int, Any]) -> UsersClass:
        return self


def unused_modules(model: nn.Module, gm: GraphModule) -> dict[str, nn.Module]:
    """Return the modules of ``model`` itself that belong under ``UNUSED_MODULES``."""
    unused = {name: module for name, module in model._modules.items() if module is not None and not hasattr(gm, name)}
    return {name: module for name, module in unused.items() if not module.state_dict()}


def bound_to_traced(found: Any, gm: GraphModule, name: str, kind: type) -> Any:
    """Look up ``gm.name``, where the user's class ``kind`` has ``found`` by that name.

    A method that returns its ``self``, alone or in a tuple, returns ``gm``.
    """
    if not hasattr(type(found), "__get__"):
        return found
    value = found.__get__(TracedSelf(gm, name, kind), kind)
    if type(getattr(value, "__self__", None)) is not TracedSelf:
        return _with_model(value)

    @functools.wraps(value)
    def method(model: GraphModule, *args: Any, **kwargs: Any) -> Any:
        return _with_model(found.__get__(TracedSelf(model, name, kind), kind)(*args, **kwargs))

    return types.MethodType(method, gm)


def _with_model(value: Any) -> Any:
    """A value, or a tuple, with the traced model for a ``TracedSelf``; deeper inside, one is pickled as the model."""
    if type(value) is tuple:
        return tuple(traced_model(item) if type(item) is TracedSelf else item for item in value)
    return traced_model(value) if type(value) is TracedSelf else value


def traced_model(view: TracedSelf) -> GraphModule:
    """Return the model behind a ``TracedSelf``."""
    return cast(GraphModule, object.__getattribute__(view, "_TracedSelf__gm"))


class TracedSelf:
    """Stands for ``self`` in a user's method: the traced model, without the layers that its graph has made its own.

    ``self(x)`` runs the graph. Batch norms, activations and residuals may be inside of a layer that has become
    integers, so that calling that layer alone would give something else than the float one: it raises instead.
    Its class is said to be the user's, so that ``super().method()`` finds what that class inherits.
    """

    __slots__ = ("__gm", "__kind", "__method")  # no __dict__ of its own: vars(self) is that of the model

    def __init__(self, gm: GraphModule, name: str, kind: type) -> None:
        for slot, value in (("gm", gm), ("method", name), ("kind", kind)):
            object.__setattr__(self, f"_TracedSelf__{slot}", value)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return self.__kind

    def __getattr__(self, name: str) -> Any:
        gm = self.__gm
        if name in vars(gm).get(UNUSED_MODULES, {}):
            return vars(gm)[UNUSED_MODULES][name]
        if (module := gm._modules.get(name)) is not None and not _is_whole(module):
            raise self._no_part(name, "it is part of the graph now, and does not run by itself")
        try:
            return getattr(gm, name)
        except AttributeError as error:
            raise self._no_part(name, "the graph does not use it, so it was left out") from error

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__gm, name, _with_model(value))

    def __delattr__(self, name: str) -> None:
        delattr(self.__gm, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__gm(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return self.__gm is (traced_model(other) if type(other) is TracedSelf else other)

    def __hash__(self) -> int:
        return hash(self.__gm)

    def __repr__(self) -> str:
        return repr(self.__gm)

    def __dir__(self) -> Iterable[str]:
        return {*dir(self.__gm), *dir(self.__kind)}

    def __copy__(self) -> GraphModule:
        return copy.copy(self.__gm)

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        return _itself, (self.__gm,)

    def __bool__(self) -> bool:
        return not hasattr(self.__kind, "__len__") or len(self) > 0

    def __len__(self) -> int:
        return int(self.__operator("__len__")())

    def __iter__(self) -> Iterator[Any]:
        return iter(self.__operator("__iter__")())

    def __contains__(self, item: object) -> bool:
        own = hasattr(self.__kind, "__contains__")
        return bool(self.__operator("__contains__")(item)) if own else item in iter(self)

    def __getitem__(self, key: Any) -> Any:
        return self.__operator("__getitem__")(key)

    def __operator(self, name: str) -> Any:
        """Ask the user's own class for ``len(self)`` and the like; torch's containers would count the graph."""
        found = getattr(self.__kind, name, None)
        if found is None:
            raise TypeError(f"{self.__kind.__name__!r} has no {name}")
        if str(getattr(found, "__module__", "")).startswith("torch."):
            raise self._no_part(name, "its layers are part of the graph now, and do not run by themselves")
        return functools.partial(found, self)

    def _no_part(self, name: str, why: str) -> MethodError:
        return MethodError(
            f"the method {self.__method!r} needs self.{name}, which this model has not as the float model had it: "
            f"{why}",
            at=f"{type(self.__gm).__name__}.{self.__method}",
            expected="a method that calls self(...), and uses attributes",
            hint=f"let forward return what {self.__method!r} wants; or quantize the part that it runs by itself",
        )


def _is_whole(module: nn.Module) -> bool:
    """Tell whether a module of a graph still computes what it did in the user's model."""
    inner = list(module.modules())
    return not any(type(one) is nn.Module or type(one).__module__.startswith("fxquant.") for one in inner)


def _itself(gm: GraphModule) -> GraphModule:
    """Unpickle a ``TracedSelf`` as the model itself: it stays nowhere but in the method that got it."""
    return gm
