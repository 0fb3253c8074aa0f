"""Refuses to export a forward that keeps, from one call to the next, what is no part of a program of torch.export."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from fxquant.capture.attributes import Attributes, Change
from fxquant.capture.copies import copy_of
from fxquant.errors import TracingError, listing

_COPY = torch.ops.aten.copy_.default
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def check_state(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], what: str) -> list[str]:
    """Call a copy of a module twice, and see whether attributes that its forward assigns to matter to the next call.

    A program of torch.export computes what the first call does, in every call. So the second call, with the buffers
    as they were, must give the same, and no attribute may count the calls. A buffer may change: it is in the program.
    Where attributes can hold nothing but what is compared, and the first call changed none, there is no second call.

    Args:
        module: It is not changed.
        args: Positional inputs.
        kwargs: Keyword inputs.
        what: The module's name, for the message.

    Returns:
        The paths of the buffers that the forward assigns other tensors to.

    Raises:
        TracingError: the forward reads what an earlier call left in an attribute.
    """
    try:
        trial = copy_of(module, shares_parameters=True)
        before = [(one, {name: _cloned(value) for name, value in one._buffers.items()}) for one in trial.modules()]
        attributes = Attributes(trial)
        first = _called(trial, args, kwargs)
        changes = attributes.changes()
        if not changes and attributes.see_all_state():
            return []
        for one, buffers in before:
            one._buffers.update(buffers)
        second = _called(trial, args, kwargs)
    except Exception:  # torch.export says by itself why the module does not run
        return []
    assigned = [change for change in changes if change.name in change.module._buffers]
    kept = [change for change in changes if change not in assigned]
    counted = [change for change in kept if not _is_alike(change.after, getattr(change.module, change.name, None))]
    if counted or not _are_equal(first, second):
        raise _lost(what, [_path(change) for change in counted or kept])
    return [_path(change) for change in assigned]


def check_stored(program: torch.export.ExportedProgram, assigned: Sequence[str], what: str) -> None:
    """Refuse a program that does not assign to the buffers at these paths: those of submodules torch.export loses.

    Raises:
        TracingError: one is missing.
    """
    if not assigned:
        return
    nodes = program.module().graph.nodes
    stored = {str(getattr(node.args[0], "target", "")) for node in nodes if node.target is _COPY}
    if missing := [path for path in assigned if path not in stored]:
        raise _lost(what, missing)


def _lost(what: str, paths: Sequence[str]) -> TracingError:
    named = f"its forward changes {listing(paths)}" if paths else "its second call gives other values than the first"
    return TracingError(
        f"a program of torch.export does not keep what {what} keeps from one call to the next",
        got=named,
        expected="a forward that changes nothing but buffers, in place",
        hint="register_buffer, and self.buffer.copy_(value) or self.buffer.add_(1), is kept",
    )


def _path(change: Change) -> str:
    return f"{change.path}.{change.name}" if change.path else change.name


def _cloned(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _called(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return copies of all values that a call gives; it draws the random numbers that any other call draws."""
    own_args, own_kwargs = pytree.tree_map_only(Tensor, _cloned, (args, dict(kwargs)))
    devices = sorted({tensor.device.index or 0 for tensor in module.parameters() if tensor.is_cuda})
    with torch.no_grad(), torch.random.fork_rng(devices=devices):
        given = module(*own_args, **own_kwargs)
    return [_cloned(value) for value in pytree.tree_leaves(given)]


def _are_equal(first: Sequence[Any], second: Sequence[Any]) -> bool:
    return len(first) == len(second) and all(_is_equal(a, b) for a, b in zip(first, second, strict=True))


def _is_equal(a: Any, b: Any) -> bool:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return type(a) is type(b) and (not isinstance(a, _PLAIN) or bool(a == b))
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.is_floating_point() or a.is_complex():
        return torch.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True)
    return torch.equal(a, b)


def _is_alike(old: Any, new: Any) -> bool:
    """Tell whether two calls leave alike values: equal numbers in containers as long; values of tensors may differ."""
    if isinstance(old, _PLAIN):
        return type(old) is type(new) and bool(old == new)
    if isinstance(old, dict):
        return isinstance(new, dict) and old.keys() == new.keys() and all(_is_alike(old[key], new[key]) for key in old)
    if isinstance(old, (list, tuple)):
        same = type(old) is type(new) and len(old) == len(new)
        return same and all(_is_alike(a, b) for a, b in zip(old, new, strict=True))
    return type(old) is type(new)
