"""Counts the multiply-accumulates of a call while it runs, whatever its code does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

Args = Sequence[Any]
Formula = Callable[[Args, Any], int]
"""Positional arguments of an operator, and its result -> its multiply-accumulates."""


def _convolution(args: Args, result: Any) -> int:
    """Each element of the result, or, transposed, of the input, meets all of the weight but its first dimension."""
    input, weight, transposed = args[0], args[1], args[6]
    return int(prod(input.shape if transposed else result.shape) * prod(weight.shape[1:]))


def _inner(first: int) -> Formula:
    """Each element of the result sums over the last dimension of the argument ``first``."""
    return lambda args, result: int(result.numel() * args[first].shape[-1])


def _attention(args: Args, result: Any) -> int:
    """Every query meets every key, and the weights of each meet all values."""
    query, key, value = args[:3]
    return int(prod(query.shape[:-1]) * key.shape[-2] * (query.shape[-1] + value.shape[-1]))


def _multi_head_attention(args: Args, result: Any) -> int:
    query, key, _, width = args[:4]
    return _projected_attention(query.shape, key.shape, width)


def _projected_attention(query: Sequence[int], key: Sequence[int], width: int) -> int:
    """Four projections around the attention of [batch, length, width]."""
    queries, keys = prod(query[:-1]), prod(key[:-1])
    return 2 * (queries + keys) * width**2 + 2 * queries * key[-2] * width


def _encoder_layer(args: Args, result: Any) -> int:
    source, width, first, second = args[0], args[1], args[14], args[16]
    rows = prod(source.shape[:-1])
    return int(_projected_attention(source.shape, source.shape, width) + rows * (first.numel() + second.numel()))


def _recurrent(args: Args, result: Any) -> int:
    """Every step multiplies with the weights of the input and of the state."""
    input, of_input, of_state = args[:3]
    return int(prod(input.shape[:-1]) * (of_input.numel() + of_state.numel()))


def _trilinear(args: Args) -> int:
    """Three tensors with dimensions to insert are multiplied, and summed."""
    shapes = []
    for tensor, dims in zip(args[:3], args[3:6], strict=True):
        shapes.append(list(tensor.shape))
        for dim in sorted(dims):
            shapes[-1].insert(dim, 1)
    return prod(torch.broadcast_shapes(*shapes))


FORMULAS: dict[str, Formula] = {
    **dict.fromkeys(("aten::convolution", "aten::convolution_overrideable"), _convolution),
    **{f"aten::{name}": _inner(0) for name in ("mm", "bmm", "mv", "_int_mm", "linear")},
    **{f"aten::{name}": _inner(1) for name in ("addmm", "baddbmm", "addmv", "_addmm_activation")},
    "aten::addbmm": lambda args, result: int(result.numel() * args[1].shape[0] * args[1].shape[-1]),
    **dict.fromkeys(("aten::dot", "aten::vdot"), lambda args, result: int(args[0].numel())),
    **{
        f"aten::_scaled_dot_product_{kind}": _attention
        for kind in (
            *("flash_attention", "flash_attention_for_cpu", "efficient_attention", "cudnn_attention"),
            *("fused_attention_overrideable", "attention_math"),
        )
    },
    "aten::_native_multi_head_attention": _multi_head_attention,
    "aten::_transformer_encoder_layer_fwd": _encoder_layer,
    "aten::mkldnn_rnn_layer": _recurrent,
    "aten::_trilinear": lambda args, result: _trilinear(args),
    "torchvision::deform_conv2d": lambda args, result: int(result.numel() * prod(args[1].shape[1:])),
}
"""Operator -> its multiply-accumulates."""

NONE_IN = ("aten", "prim", "prims", "profiler", "torchvision", "fxquant")
"""Libraries whose other operators are no sums of products of floats."""

_LEADS_OUT = {"numpy", "__array__", "__dlpack__", "data_ptr", "tolist"}
"""Methods of tensors behind which other code may compute."""


class Products(TorchDispatchMode):
    """Counts what runs in its block, in this thread.

    Attributes:
        count: Multiply-accumulates.
        unknown: What ran whose multiply-accumulates nobody knows.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.unknown: dict[str, None] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Args = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operator, and count it."""
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator):
            self.unknown[func.name()] = None
            return func(*args, **kwargs)
        name = func._schema.name
        if name not in FORMULAS:
            with self:  # without autograd, operators come here that are made of others
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        result = func(*args, **kwargs)
        if name in FORMULAS:
            self.count += FORMULAS[name](args, result)
        elif func.namespace not in NONE_IN:
            self.unknown[name.replace("::", ".")] = None
        return result


class _LeadsOut(TorchFunctionMode):
    """Notes where tensors are handed to code that is not torch's."""

    def __init__(self, products: Products) -> None:
        super().__init__()
        self._products = products

    def __torch_function__(
        self, func: Any, types: Any, args: Args = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in _LEADS_OUT and getattr(Tensor, name, None) is func:
            self._products.unknown[f"Tensor.{name}"] = None
        return func(*args, **(kwargs or {}))


@contextmanager
def products_counted() -> Iterator[Products]:
    """Count the multiply-accumulates of the block. Where it hands tensors to other libraries, that is unknown."""
    with Products() as products, _LeadsOut(products):
        yield products
