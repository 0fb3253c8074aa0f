"""Counts the multiply-accumulates of a node.

Operators with a formula are counted from the shapes of the example. Any other code is counted while it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._ops import HigherOrderOperator
from torch.fx import Node
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fxquant.graph.query import PRODUCTS, called_type, canonical_type, module_of, tensors_of, value_of

Shape = tuple[int, ...]

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
CONV_FUNCTIONS = (F.conv1d, F.conv2d, F.conv3d)
TRANSPOSED_FUNCTIONS = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)

RECURRENT = (nn.RNN, nn.LSTM, nn.GRU, nn.RNNCell, nn.LSTMCell, nn.GRUCell)


def _per_output(output: Shape, weight: Shape) -> int:
    """Each output element sums over all of the weight but its first dimension: convolutions, linear layers."""
    return prod(output) * prod(weight[1:])


COUNTS: dict[Any, Callable[[Node, Shape], int]] = {
    **{kind: lambda node, output: _per_output(output, _weight(node)) for kind in (*CONVOLUTIONS, nn.Linear)},
    # A transposed convolution multiplies each *input* element with all of the weight but its first dimension.
    **{kind: lambda node, output: _per_output(_operand(node, 0), _weight(node)) for kind in TRANSPOSED},
    **{f: lambda node, output: _per_output(output, _operand(node, 1)) for f in (*CONV_FUNCTIONS, F.linear)},
    **{f: lambda node, output: _per_output(_operand(node, 0), _operand(node, 1)) for f in TRANSPOSED_FUNCTIONS},
    torch.einsum: lambda node, output: _einsum(node),
    F.scaled_dot_product_attention: lambda node, output: _products(node, output),
    **{f: lambda node, output: prod(output) * _operand(node, 0)[-1] for f in (torch.matmul, torch.bmm, torch.mm)},
}


_OTHER_PRODUCTS = frozenset(
    (
        *("addbmm", "addmm", "addmv", "baddbmm", "bilinear", "bmm", "chain_matmul", "dot", "einsum", "inner", "matmul"),
        *("mm", "multi_dot", "multi_head_attention_forward", "mv", "tensordot", "vdot"),
        *("gru", "gru_cell", "lstm", "lstm_cell", "rnn_relu", "rnn_relu_cell", "rnn_tanh", "rnn_tanh_cell"),
    )
)
"""Names of what else in torch multiplies, as functions or methods; most of it is taken apart before it is counted."""
_NO_PRODUCTS = frozenset(("torch", "_operator", "builtins", "math", "fxquant"))
"""Packages whose other functions do not; operators that are called as such are counted."""


def multiply_accumulates(node: Node) -> int:
    """Multiply-accumulates of a node on the example inputs; 0 without them, and where nothing sums products."""
    if not all(info.has_shape for each in (node, *node.all_input_nodes) for info in tensors_of(each)):
        return 0
    output, target = value_of(node), _target(node, module_of(node))
    if target is nn.MultiheadAttention:
        return _attention(node)
    if target in RECURRENT:
        return _recurrent(node)
    if target in COUNTS:
        return 0 if output is None else COUNTS[target](node, output.shape)
    count, _ = node.meta.get(PRODUCTS, (0, ""))
    return int(count)


def uncounted(node: Node) -> str:
    """Name the code that a node ran on the example and that nobody could count; empty if all was counted."""
    return "" if _has_formula(_target(node, module_of(node))) else str(node.meta.get(PRODUCTS, (0, ""))[1])


def run_counted(node: Node, module: nn.Module | None, run: Callable[[], Any]) -> Any:
    """Run the call of a node, and note its multiply-accumulates if no formula of its target is known.

    Args:
        node: Its metadata are written to.
        module: What it calls; None for a function or a method.
        run: Calls it on the example.

    Returns:
        What ``run`` gave.
    """
    if _has_formula(_target(node, module)) or not _may_multiply(node, module):
        return run()
    try:
        with products_counted() as products:
            result = run()
    except Exception:
        result = run()  # it fails by itself, or does not run under a counter
        node.meta[PRODUCTS] = (0, "code that does not run while it is counted")
        return result
    if products.count or products.unknown:
        node.meta[PRODUCTS] = (products.count, ", ".join(products.unknown))
    return result


def _may_multiply(node: Node, module: nn.Module | None) -> bool:
    """Tell whether a call may multiply: it runs code of the user's or of another package, or a product of torch's."""
    if module is not None:
        return canonical_type(module) in (None, nn.Bilinear) or bool(module._modules)
    if node.op == "call_method":
        return node.target in _OTHER_PRODUCTS
    name, place = (str(getattr(node.target, each, "")) for each in ("__name__", "__module__"))
    return name in _OTHER_PRODUCTS or place.startswith("torch._ops.") or place.partition(".")[0] not in _NO_PRODUCTS


def _target(node: Node, module: nn.Module | None) -> Any:
    """Return the target of a node, or the class of the module that it calls."""
    return node.target if module is None else called_type(module)


def _has_formula(target: Any) -> bool:
    return target is nn.MultiheadAttention or target in RECURRENT or target in COUNTS


def _attention(node: Node) -> int:
    """Four projections, and for every query a product with every key and with every value."""
    module: Any = module_of(node)
    query, key = (_named_operand(node, position, name) for position, name in enumerate(("query", "key")))
    if not query or not key:
        return 0
    width, queries, keys = module.embed_dim, prod(query[:-1]), prod(key[:-1])
    batch = 1 if len(query) == 2 else query[0 if module.batch_first else 1]
    projections = 2 * queries * width * width + keys * width * (module.kdim + module.vdim)
    return projections + 2 * queries * (keys // max(batch, 1)) * width


def _products(node: Node, output: Shape) -> int:
    """Count the products of every query with every key, and of the weights with the values."""
    query, key = (_named_operand(node, position, name) for position, name in enumerate(("query", "key")))
    return prod(output[:-1]) * key[-2] * (query[-1] + output[-1]) if query and key else 0


def _einsum(node: Node) -> int:
    """One product for every combination of all indices, where two tensors are multiplied."""
    equation, *operands = node.args
    subscripts = str(equation).replace(" ", "").partition("->")[0].split(",")
    shapes = [_shape(operand) for operand in operands]
    if len(operands) < 2 or "..." in str(equation) or len(subscripts) != len(operands):
        return 0
    letters = "".join(subscripts)
    return prod(dict(zip(letters, (size for shape in shapes for size in shape), strict=True)).values())


def _recurrent(node: Node) -> int:
    """Every step multiplies with all matrices."""
    module: Any = module_of(node)
    steps = prod(_named_operand(node, 0, "input")[:-1])
    return steps * sum(weight.numel() for weight in module.parameters() if weight.dim() == 2)


def _named_operand(node: Node, position: int, name: str) -> Shape:
    return _shape(node.args[position] if position < len(node.args) else node.kwargs.get(name))


def _shape(value: Any) -> Shape:
    info = value_of(value) if isinstance(value, Node) else None
    return info.shape if info is not None else ()


def _weight(node: Node) -> Shape:
    weight = getattr(module_of(node), "weight", None)
    return tuple(weight.shape) if weight is not None else (0,)


def _operand(node: Node, position: int) -> Shape:
    """Shape of the input (0) or the weight (1), also where the user gave it by keyword and it stayed so."""
    name = ("input", "weight")[position]
    value = node.args[position] if position < len(node.args) else node.kwargs.get(name)
    info = value_of(value) if isinstance(value, Node) else None
    return info.shape if info is not None else (0,)


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


def _scaled_attention(args: Args, result: Any) -> int:
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


def _recurrent_layer(args: Args, result: Any) -> int:
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
        f"aten::_scaled_dot_product_{kind}": _scaled_attention
        for kind in (
            *("flash_attention", "flash_attention_for_cpu", "efficient_attention", "cudnn_attention"),
            *("fused_attention_overrideable", "attention_math"),
        )
    },
    "aten::_native_multi_head_attention": _multi_head_attention,
    "aten::_transformer_encoder_layer_fwd": _encoder_layer,
    "aten::mkldnn_rnn_layer": _recurrent_layer,
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
