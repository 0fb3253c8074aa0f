"""Writes down what can be told of the values of a graph without running it: which are tensors, and of what dtype.

A dtype that does not follow from layers, casts and operators is not assumed: such a value has no entry, as one that
was never run. So nothing quantizes it, and no cast of it counts as one that changes nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule, Node

from fxquant.graph.query import (
    VALUE,
    TensorInfo,
    UnknownShape,
    attribute_at,
    canonical_type,
    described,
    flat_arguments,
    info_of,
    is_shape_query,
    module_of,
)

_FLOAT = TensorInfo(UnknownShape(), torch.float32, torch.device("cpu"))
_INDEX = replace(_FLOAT, dtype=torch.int64)

_RECURRENT: dict[type[nn.Module], Any] = {
    nn.LSTM: (_FLOAT, (_FLOAT, _FLOAT)),
    **dict.fromkeys((nn.GRU, nn.RNN, nn.LSTMCell, nn.MultiheadAttention), (_FLOAT, _FLOAT)),
}
"""Layers that give several tensors, and what they give."""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_LISTS = _names("split chunk unbind tensor_split split_with_sizes hsplit vsplit dsplit")
"""Functions and methods that give parts of one tensor."""

_WITH_INDICES = _names("topk sort kthvalue mode cummax cummin max_pool1d_with_indices max_pool2d_with_indices")
"""They give values and their indices; so do those below, of one dimension."""
_WITH_INDICES_OF_A_DIM = _names("max min median nanmedian")

_CASTS = {
    **{"float": torch.float32, "double": torch.float64, "half": torch.float16, "bfloat16": torch.bfloat16},
    **{"byte": torch.uint8, "char": torch.int8, "short": torch.int16, "int": torch.int32, "long": torch.int64},
    **{"bool": torch.bool, "cfloat": torch.complex64, "cdouble": torch.complex128},
}
"""Methods that are named by the dtype that they convert to."""

_BOOL = _names(
    "eq ne lt le gt ge less less_equal greater greater_equal not_equal logical_and logical_or logical_xor logical_not "
    "isnan isinf isfinite isposinf isneginf isreal isclose isin signbit any all"
)
_INT64 = _names(
    "argmax argmin argsort bincount bucketize searchsorted nonzero argwhere count_nonzero one_hot randint randint_like "
    "randperm multinomial tril_indices triu_indices nms batched_nms"
)
_UNKNOWN = _names(
    "complex polar view_as_complex view_as_real real imag angle stft istft item tolist numpy histogram frexp unique "
    "unique_consecutive slogdet type storage get_device data_ptr meshgrid broadcast_tensors tensor as_tensor "
    "quantize_per_tensor quantize_per_channel dequantize int_repr equal allclose is_floating_point is_complex "
    "result_type pack_padded_sequence pad_packed_sequence std_mean var_mean aminmax divmod fractional_max_pool2d "
    "adaptive_max_pool1d_with_indices adaptive_max_pool2d_with_indices multi_head_attention_forward finfo"
)
"""What they give is no tensor, several tensors, or has a dtype that follows from more than those of the arguments."""

_FACTORIES = _names("zeros ones empty rand randn linspace logspace eye full arange randint randperm")

_OF_THE_FIRST = _names(
    "view reshape flatten unflatten ravel permute transpose t adjoint squeeze unsqueeze expand expand_as view_as "
    "reshape_as broadcast_to repeat tile repeat_interleave roll flip fliplr flipud rot90 diagonal diag unfold narrow "
    "select index_select gather take take_along_dim masked_select masked_fill masked_scatter index_add index_copy "
    "index_put index_fill scatter scatter_add getitem contiguous clone detach cpu cuda requires_grad pos positive neg "
    "abs sign tril triu movedim moveaxis swapaxes swapdims pad invert bitwise_not copy fill zero relu "
    "amax amin zeros_like ones_like empty_like full_like rand_like randn_like new_zeros new_ones new_empty new_full "
    "new_tensor pixel_shuffle pixel_unshuffle channel_shuffle lshift rshift bitwise_left_shift bitwise_right_shift"
)
"""Their result has the dtype of the first argument, whatever the others are."""

_PROMOTING = _names(
    "add sub rsub subtract mul multiply floordiv floor_divide mod remainder fmod pow maximum minimum max min clamp "
    "clip clamp_min clamp_max where cat concat concatenate stack hstack vstack and or xor bitwise_and bitwise_or "
    "bitwise_xor"
)
_IN_FLOAT = _names(
    "truediv div divide true_divide exp exp2 log log2 log10 log1p sqrt rsqrt sin cos tan tanh sigmoid erf"
)
_SUMS = _names("sum prod cumsum cumprod")

_OF_ONE_DTYPE = _names(
    "linear bilinear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d matmul bmm mm mv baddbmm "
    "addmm einsum scaled_dot_product_attention layer_norm group_norm prelu"
)
"""All of their tensors have one dtype, but masks."""

_NUMBERS = ("_operator", "math", "builtins")
"""Packages whose functions also compute with numbers."""


def assume_values(gm: GraphModule) -> None:
    """Write to each node what can be told of its value without running it: tensors of no known shape, sizes."""
    for node in gm.graph.nodes:
        if node.op == "output":
            value = described(node.args[0])
        elif node.op == "get_attr":
            value = info_of(attribute_at(gm, str(node.target)))
        elif node.op == "placeholder":
            value = _of_input(node)
        else:
            value = _assumed(node)
        if value is None:
            dtype = _demanded(node)
            value = None if dtype is None else replace(_FLOAT, dtype=dtype)
        if value is not None:
            node.meta[VALUE] = value


def _of_input(node: Node) -> Any:
    """An input is a tensor of floats, but for one that is cast, or that looks up rows."""
    if any(_name(user) in (*_CASTS, "to", "type", "type_as") and user.op == "call_method" for user in node.users):
        return None
    return None if _demanded(node) is not None else _FLOAT


def _demanded(node: Node) -> torch.dtype | None:
    """Return the dtype that a reader demands: a layer that of its weight, a table of embeddings indices."""
    pending, seen = list(node.users), {node}
    while pending:
        reader = pending.pop()
        module, first = module_of(reader), reader.args[0] if reader.args else None
        if first not in seen or not _is_of_torch(reader):
            continue
        kind = None if module is None else canonical_type(module)
        if kind in (nn.Embedding, nn.EmbeddingBag) or (_name(reader) == "embedding" and reader.op == "call_function"):
            return torch.int64
        if module is not None and kind is not None and (dtype := _parameters_dtype(module)) is not None:
            return dtype
        if kind is not None if module is not None else _name(reader) in _OF_THE_FIRST:  # what reads the same dtype on
            seen.add(reader)
            pending += reader.users
    return None


def _parameters_dtype(module: nn.Module) -> torch.dtype | None:
    """Return the one dtype of the parameters of a layer, else of its buffers."""
    for tensors in (module.parameters(), module.buffers()):
        found = {tensor.dtype for tensor in tensors if tensor.is_floating_point()}
        if found:
            return found.pop() if len(found) == 1 else None
    return None


def _name(node: Node) -> str:
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return name if node.op == "call_module" else name.strip("_")


def _assumed(node: Node) -> Any:
    """Return the value of a call; None if its dtype is not known."""
    if is_shape_query(node):
        several = node.target is getattr or (node.target == "size" and len(node.args) == 1)
        return torch.Size if several else int
    if node.op == "call_module":
        return _of_module(node)
    if node.target is getattr and node.args[1] == "dtype":
        return torch.dtype
    # What is computed of sizes, and what is no operator of torch.
    name, inputs = _name(node), node.all_input_nodes
    sizes = bool(inputs) and all(isinstance(value.meta.get(VALUE), type) for value in inputs)
    if node.op == "call_function" and sizes and getattr(node.target, "__module__", "") in _NUMBERS:
        return float if node.target is operator.truediv else int  # what is computed of sizes
    if not _is_of_torch(node):
        return None
    # Operators that give several results, and one of these.
    if name in _LISTS:
        return ()
    if name in _WITH_INDICES or (name in _WITH_INDICES_OF_A_DIM and _is_of_a_dim(node)):
        dtype = _dtype_of(_first(node))
        return () if dtype is None else (replace(_FLOAT, dtype=dtype), _INDEX)
    source = _first(node)
    if node.target in (operator.getitem, getattr) and isinstance(source, Node):
        values, key = source.meta.get(VALUE), node.args[1]
        key = {"values": 0, "indices": 1}.get(key, key) if isinstance(key, str) else key
        if isinstance(values, tuple) and isinstance(key, int) and -len(values) <= key < len(values):
            return values[key]
        if isinstance(values, type):
            return int if isinstance(key, (int, Node)) else values
    # One tensor.
    dtype = _result_dtype(node, name)
    return None if dtype is None else replace(_FLOAT, dtype=dtype)


def _is_of_a_dim(node: Node) -> bool:
    """Tell whether ``max`` and the like are taken over one dimension, not of two tensors or of all elements."""
    second = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    return second is not None and (not isinstance(second, Node) or second.meta.get(VALUE) is int)


def _of_module(node: Node) -> Any:
    module = module_of(node)
    for kind, values in _RECURRENT.items():
        if isinstance(module, kind):
            return values
    if module is None or canonical_type(module) is None:
        return None
    dtype = _parameters_dtype(module)
    source = _dtype_of(_first(node))
    if dtype is None and source is not None and (source.is_floating_point or isinstance(module, _MOVES)):
        dtype = source
    if dtype is None:
        return None
    value = replace(_FLOAT, dtype=dtype)
    return (value, _INDEX) if getattr(module, "return_indices", False) else value


_MOVES = (nn.Identity, nn.Flatten, nn.Unflatten, nn.Dropout)


def _first(node: Node) -> Any:
    return node.args[0] if node.args else node.kwargs.get("input", node.kwargs.get("tensors"))


def _dtype_of(value: Any) -> torch.dtype | None:
    """Return the dtype of a tensor, or of the parts that a split makes; None if it is not known, or no tensor."""
    if not isinstance(value, Node):
        return None
    known = value.meta.get(VALUE)
    if isinstance(known, TensorInfo):
        return known.dtype
    return _dtype_of(_first(value)) if value.op != "call_module" and _name(value) in _LISTS else None


def _result_dtype(node: Node, name: str) -> torch.dtype | None:
    """Return the dtype of the tensor that a function or method gives; None if it is not known."""
    if node.op == "call_method" and name in _CASTS:
        return _CASTS[name]
    if node.op == "call_method" and name in ("to", "type", "type_as"):
        return _cast_dtype(node, name)
    if name in _UNKNOWN or "fft" in name:
        return None
    written = node.kwargs.get("dtype") or next((a for a in flat_arguments(node) if isinstance(a, torch.dtype)), None)
    if written is not None:
        return _named_dtype(written)
    if name in _BOOL:
        return torch.bool
    if name in _INT64:
        plain = not node.kwargs.get("out_int32") and not node.kwargs.get("as_tuple")
        return torch.int64 if plain else None
    if name in _FACTORIES:
        return _factory_dtype(node, name)
    if name in _OF_THE_FIRST or _is_in_place(node) or (node.target is getattr and node.args[1] in _VIEWS):
        return _dtype_of(_first(node))
    return None if node.target is getattr else _promoted_dtype(node, name)


_VIEWS = ("T", "mT", "H", "mH", "data")
_IN_PLACE = (operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ifloordiv)


def _is_in_place(node: Node) -> bool:
    if node.op == "call_method":
        return str(node.target).endswith("_") and not str(node.target).startswith("_")
    return node.target in _IN_PLACE


def _is_of_torch(node: Node) -> bool:
    package = getattr(node.target, "__module__", None) or "torch"
    return node.op in ("call_method", "call_module") or package.partition(".")[0] in ("torch", "torchvision", *_NUMBERS)


def _cast_dtype(node: Node, name: str) -> torch.dtype | None:
    """Return the dtype that ``to``, ``type`` or ``type_as`` converts to: the one named, or that of another tensor."""
    others = [*node.args[1:], *node.kwargs.values()]
    for other in others:
        known = other.meta.get(VALUE) if isinstance(other, Node) else other
        if isinstance(other, torch.dtype) or known is torch.dtype or isinstance(known, TensorInfo):
            return _named_dtype(other)
        if isinstance(other, Node) and known is None:
            return None
    return _dtype_of(node.args[0]) if name == "to" else None


def _named_dtype(written: Any) -> torch.dtype | None:
    """Return the dtype that an argument names: itself, ``x.dtype``, or the tensor whose dtype is taken."""
    if isinstance(written, torch.dtype):
        return written
    if isinstance(written, Node):
        return _dtype_of(written.args[0] if written.meta.get(VALUE) is torch.dtype else written)
    return None


def _factory_dtype(node: Node, name: str) -> torch.dtype | None:
    if name not in ("full", "arange"):
        return torch.get_default_dtype()
    numbers = node.args if name == "arange" else (*node.args[1:2], *node.kwargs.values())[:1]
    kinds = {value.meta.get(VALUE) if isinstance(value, Node) else type(value) for value in numbers}
    if not kinds <= {int, float, bool} or not kinds:
        return None
    if float in kinds:
        return torch.get_default_dtype()
    return torch.bool if kinds == {bool} else torch.int64


def _operands(node: Node, name: str) -> Iterator[Any]:
    """Yield what a result is computed of: tensors, and Python numbers."""
    taken = node.args[1:3] if name == "where" else (node.args, node.kwargs)
    pending: list[Any] = [taken]
    while pending:
        value = pending.pop()
        if isinstance(value, (tuple, list)):
            pending += value
        elif isinstance(value, dict):
            pending += value.values()
        elif isinstance(value, (Node, int, float, complex)):
            yield value


def _promoted_dtype(node: Node, name: str) -> torch.dtype | None:
    """Return the dtype that an operator computes in, of the dtypes of all its tensors and its numbers."""
    tensors, numbers = [], set[Any]()
    for value in _operands(node, name):
        if not isinstance(value, Node):
            numbers.add(type(value))
        elif isinstance(value.meta.get(VALUE), type):
            numbers.add(value.meta[VALUE])
        else:
            tensors.append(_dtype_of(value))
    # Tensors of floats decide by themselves, where they agree.
    known = {dtype for dtype in tensors if dtype is not None}
    floats = {dtype for dtype in known if dtype.is_floating_point}
    if name == "embedding" or name in _OF_ONE_DTYPE:
        return next(iter(floats)) if len(floats) == 1 else None
    if not tensors or None in tensors or len(floats) > 1 or any(dtype.is_complex for dtype in known):
        return None  # of float32 and float64 the wider one, but where it has no dimensions
    if floats:
        return None if complex in numbers else floats.pop()
    # Integers: float division and the like, sums, then what numbers promote to.
    if name in _IN_FLOAT:
        return None if node.kwargs.get("rounding_mode") else torch.get_default_dtype()
    if name in _SUMS:
        return torch.int64
    if name not in _PROMOTING or len(known) > 1 or complex in numbers:
        return None
    if float in numbers:
        return torch.get_default_dtype()
    dtype = known.pop()
    return torch.int64 if dtype is torch.bool and int in numbers else dtype
