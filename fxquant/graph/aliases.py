"""Finds the nodes that change a tensor in place, and the values that may share its memory."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.fx import Node
from torch.nn.modules.dropout import _DropoutNd

from fxquant.capture.attributes import assign_buffer
from fxquant.graph.operators.spelling import operator_of
from fxquant.graph.query import VALUE, TensorInfo, canonical_type, flat_arguments, module_of, nodes_in

Roots = frozenset[Any]
"""Names for pieces of memory: the node that allocated it, or ``("attribute", name)`` for parameters and buffers."""

_IN_PLACE_OPERATORS: dict[Callable[..., Any], Callable[..., Any]] = {
    getattr(operator, f"i{name}"): getattr(operator, name)
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and_", "or_", "xor", "lshift", "rshift")
    if hasattr(operator, f"i{name}")
}
_IN_PLACE_OPERATORS |= {operator.iand: operator.and_, operator.ior: operator.or_}

# Methods whose in-place form computes exactly what the plain one does. Left out: those that fill (zero_, copy_), draw
# random numbers, or whose plain form has another dtype (eq_).
_PLAIN = (
    "abs neg exp exp2 expm1 log log1p log2 sqrt rsqrt reciprocal square floor ceil round trunc frac sin cos tan "
    "sinh cosh tanh asin acos atan sigmoid erf erfc sign pow add sub mul div clamp clamp_min clamp_max clip "
    "masked_fill masked_scatter addcmul addcdiv lerp index_add index_copy index_fill index_put scatter scatter_add "
    "tril triu nan_to_num floor_divide remainder fmod unsqueeze squeeze transpose t relu"
)
_VIEWS = "unsqueeze squeeze transpose t"
# Other methods, and torch functions of the same names, that compute into new memory.
_OTHERS = (
    "clone repeat gather index_select where cumsum cumprod max min amax amin argmax argmin topk sort argsort norm var "
    "std prod any all eq ne lt gt le ge logical_and logical_or logical_not isnan maximum minimum bmm mm addmm baddbmm "
    "outer dot zeros_like ones_like full_like rand_like randn_like empty_like new_zeros new_ones new_full new_empty "
    "new_tensor"
)
_PLAIN_METHODS = frozenset(_PLAIN.split())
_FRESH = (_PLAIN_METHODS - frozenset(_VIEWS.split())) | frozenset(_OTHERS.split())
_NO_CHANGE_OF_VALUES = frozenset(("requires_grad_", "detach_", "retain_grad", "share_memory_"))

_MAY_RETURN_INPUT = (
    nn.Identity,
    _DropoutNd,
    nn.Flatten,
    nn.Unflatten,
    nn.PixelShuffle,
    nn.PixelUnshuffle,
    nn.ChannelShuffle,
)


def changed_argument(node: Node) -> Any:
    """Return the value that ``node`` changes in place, or None if it changes nothing.

    A module with code of its own (``leaf_modules``) is taken to change nothing but its own state.
    """
    if node.op == "call_module":
        module = module_of(node)
        if module is None or getattr(module, "inplace", False) is not True or canonical_type(module) is None:
            return None
        return None if isinstance(module, _DropoutNd) and not module.training else _first(node)
    if node.op == "call_method":
        name = str(node.target)
        if name == "__setitem__":
            return _tensor_or_none(_first(node))
        dunder = name.startswith("__i") and name.endswith("__") and name not in ("__iter__", "__index__", "__invert__")
        if name in _NO_CHANGE_OF_VALUES or not (dunder or (name.endswith("_") and not name.endswith("__"))):
            return node.kwargs.get("out")
        return _tensor_or_none(_first(node))
    if node.op == "call_function":
        return _changed_by_function(node)
    return None


def changed_values(node: Node) -> list[Node]:
    """Return all values that ``node`` changes in place: several of ``out=(a, b)``, and of ``torch._foreach_mul_``."""
    return nodes_in(changed_argument(node))


def _changed_by_function(node: Node) -> Any:
    target: Any = node.target
    if node.kwargs.get("out") is not None:
        return node.kwargs["out"]
    if node.kwargs.get("inplace") is True or _has_positional_inplace(node):
        return _first(node)
    if target is assign_buffer:
        return _first(node)
    if target is operator.setitem or target in _IN_PLACE_OPERATORS:
        return _tensor_or_none(_first(node))
    if isinstance(target, torch._ops.OpOverload):
        return _first(node) if target._schema.is_mutable else None
    name = getattr(target, "__name__", "")
    in_torch = (getattr(target, "__module__", "") or "torch").startswith("torch")
    return _first(node) if in_torch and name.endswith("_") and not name.endswith("__") else None


def _has_positional_inplace(node: Node) -> bool:
    known = operator_of(node.target)
    if known is None or known.fixed or len(node.args) != len(known.parameters) + 1:
        return False
    return node.args[-1] is True


def _first(node: Node) -> Any:
    return node.args[0] if node.args else node.kwargs.get("input", node.kwargs.get("self"))


def _tensor_or_none(value: Any) -> Any:
    """In-place operators on numbers and tuples make new ones."""
    if not isinstance(value, Node):
        return None
    return value if VALUE not in value.meta or isinstance(value.meta[VALUE], (TensorInfo, list)) else None


def plain_form(node: Node) -> tuple[str, Any] | None:
    """(op, target) of the call that computes, into new memory, what the in-place ``node`` leaves in its first argument.

    For operators that ``graph.operators`` does not list. None where there is none.
    """
    target: Any = node.target
    if node.op == "call_function" and target in _IN_PLACE_OPERATORS:
        return "call_function", _IN_PLACE_OPERATORS[target]
    if node.op == "call_method" and target[:-1] in _PLAIN_METHODS:
        return "call_method", target[:-1]
    if node.op == "call_function" and getattr(target, "__name__", "")[:-1] in _PLAIN_METHODS:
        plain = getattr(torch, target.__name__[:-1], None)
        in_torch = getattr(torch, target.__name__, None) is target
        return ("call_function", plain) if in_torch and plain is not None else None
    return None


def roots_of(node: Node, known: Mapping[Node, Roots]) -> Roots:
    """Return the memory that the value of ``node`` may live in, given that of the nodes before it.

    What is not known to compute into new memory is taken to return a view of any of its arguments.
    """
    if node.op == "placeholder":
        return frozenset((node,))
    if node.op == "get_attr":
        return frozenset((("attribute", node.target),))
    if not may_hold_tensor(node):
        return frozenset()
    if _is_fresh(node) or _copies(node):
        return frozenset((node,))
    # A key, a mask say, is no memory.
    given = node.args[:1] if node.target is operator.getitem else flat_arguments(node)
    return frozenset((node,)).union(*(known[argument] for argument in given if isinstance(argument, Node)))


def may_hold_tensor(node: Node) -> bool:
    """Tell whether the value of a node may be a tensor or hold one. A value that was never run may."""
    return VALUE not in node.meta or _holds_tensor(node.meta[VALUE])


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, tuple):
        return any(_holds_tensor(item) for item in value)
    if isinstance(value, dict):
        return any(_holds_tensor(item) for item in value.values())
    return isinstance(value, TensorInfo) or not (isinstance(value, type) and issubclass(value, _NO_TENSORS))


_NO_TENSORS = (int, float, complex, str, torch.Size, torch.dtype, torch.device, type(None))


def _copies(node: Node) -> bool:
    """Tell whether a node takes items of a tensor by a list or by a tensor of indices, which copies.

    A number takes a view, of a tuple of tensors too, and so does a list of slices, which is a tuple for torch.
    """
    if node.target is not operator.getitem or not isinstance(source := node.args[0], Node):
        return False
    key: Any = node.args[1]
    is_tensor = isinstance(source.meta.get(VALUE), TensorInfo)
    return is_tensor and any(map(_is_index, key if isinstance(key, tuple) else (key,)))


def _is_index(item: Any) -> bool:
    """Tell whether an item of a key is a list of numbers, or a tensor with dimensions."""
    if isinstance(item, list):
        return all(type(each) in (int, bool) or _is_index(each) for each in item)
    info = item.meta.get(VALUE) if isinstance(item, Node) else None
    return isinstance(info, TensorInfo) and info.has_shape and len(info.shape) > 0


def _is_fresh(node: Node) -> bool:
    if changed_argument(node) is not None:
        return False
    if node.op == "call_module":
        module = module_of(node)
        kind = None if module is None else canonical_type(module)
        return kind is not None and not issubclass(kind, (*_MAY_RETURN_INPUT, nn.Sequential))
    known = operator_of(node.target)
    if known is not None:
        return not known.view
    if node.op == "call_method":
        return node.target in _FRESH
    name = getattr(node.target, "__name__", "")
    return name in _FRESH and getattr(torch, name, None) is node.target
