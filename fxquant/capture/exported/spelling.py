"""The operators of ATen in exported programs, each as a call that a user writes: a row for every overload."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Node

from fxquant.capture.exported import core_aten

END = 2**63 - 1
"""What exported programs write for the end of a dimension."""

Spelled = tuple[str, Any, tuple[Any, ...], dict[str, Any]]
"""Operation of a node, target, positional and keyword arguments."""

Given = dict[str, Any]
"""The arguments of an overload under the names of its schema, those that were left out with their defaults."""


@dataclass(frozen=True, slots=True)
class Same:
    """A row whose value is one of its arguments: nothing is computed."""

    value: Any


Write = Callable[[Given], "Spelled | Same"]

_METHODS = """
abs acos acosh add addcdiv addcmul asin asinh atan atan2 atanh bitwise_and bitwise_not bitwise_or bitwise_xor ceil clamp
clamp_max clamp_min copysign cos cosh div eq erf erfc erfinv exp exp2 expm1 floor floor_divide fmod frac ge gt heaviside
hypot isfinite isinf isnan le lerp log log10 log1p log2 logical_and logical_not logical_or logical_xor logit lt maximum
minimum mul nan_to_num ne neg pow reciprocal relu remainder round rsqrt sgn sigmoid sign sin sinc sinh sqrt square sub
tan tanh trunc xlogy
all amax amin any argmax argmin argsort count_nonzero cummax cummin cumprod cumsum log_softmax logcumsumexp logsumexp
max mean median min norm prod softmax sort std sum topk var
addbmm addmm addmv addr baddbmm bmm dot inner matmul mm mv outer vdot
as_strided chunk clone contiguous detach diagonal diff expand expand_as flatten flip gather index_add index_copy
index_fill index_select masked_fill masked_scatter masked_select movedim narrow nonzero permute ravel repeat
repeat_interleave reshape roll scatter scatter_add scatter_reduce split squeeze swapaxes t
take_along_dim tensor_split tile transpose tril triu type_as unbind unflatten unfold unsqueeze view view_as
new_empty new_full new_ones new_zeros
"""
METHODS = frozenset(_METHODS.split())
"""Methods of tensors with the name and the arguments of the operator; also in place, where torch has them so."""

IN_PLACE_ONLY = frozenset(("copy_", "fill_", "zero_", "requires_grad_"))

_OF_LAYERS = """
conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d linear bilinear
avg_pool1d avg_pool2d avg_pool3d max_pool1d max_pool2d max_pool3d
adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d
celu elu gelu glu hardshrink hardsigmoid hardswish hardtanh leaky_relu mish prelu relu6 selu silu softplus softshrink
threshold dropout pad pixel_shuffle pixel_unshuffle rms_norm one_hot
"""
_OF_TORCH = """
cat stack where rsub channel_shuffle meshgrid block_diag kron cross cosine_similarity isin bucketize searchsorted
logaddexp polar view_as_complex view_as_real complex real imag
arange empty eye full linspace ones rand randn scalar_tensor zeros bernoulli multinomial
empty_like full_like ones_like rand_like randn_like zeros_like
"""
FUNCTIONS: Mapping[str, Any] = {
    **{name: getattr(F, name) for name in _OF_LAYERS.split()},
    **{name: getattr(torch, name) for name in _OF_TORCH.split()},
    "log_sigmoid": F.logsigmoid,
    "linalg_vector_norm": torch.linalg.vector_norm,
    "_safe_softmax": torch._safe_softmax,
}
"""Functions with the arguments of the operator, in its order."""

TUPLES = ("kernel_size", "stride", "padding", "dilation", "output_padding", "output_size", "dim", "pad")
"""Arguments of numbers that users write as tuples."""

KEYWORDS = ("dtype", "layout", "device", "pin_memory", "memory_format")
"""Arguments that are given by name, wherever the schema has them."""


def _call(function: Any, *args: Any, **kwargs: Any) -> Spelled:
    return "call_function", function, args, kwargs


def _method(name: str, *args: Any, **kwargs: Any) -> Spelled:
    return "call_method", name, args, kwargs


def _embedding(g: Given) -> Spelled:
    padding = None if g["padding_idx"] == -1 else g["padding_idx"]
    return _call(F.embedding, g["indices"], g["weight"], padding, None, 2.0, g["scale_grad_by_freq"], g["sparse"])


def _batch_norm(g: Given) -> Spelled:
    return _call(
        F.batch_norm,
        *(
            g[name]
            for name in ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
        ),
    )


def _instance_norm(g: Given) -> Spelled:
    names = ("input", "running_mean", "running_var", "weight", "bias", "use_input_stats", "momentum", "eps")
    return _call(F.instance_norm, *(g[name] for name in names))


def _layer_norm(g: Given) -> Spelled:
    shape = tuple(g["normalized_shape"])
    return _call(F.layer_norm, g["input"], shape, g["weight"], g["bias"], g["eps"])


def _group_norm(g: Given) -> Spelled:
    return _call(F.group_norm, g["input"], g["num_groups"], g["weight"], g["bias"], g["eps"])


def _attention(g: Given) -> Spelled:
    first = g["query"], g["key"], g["value"], g["attn_mask"], g["dropout_p"], g["is_causal"]
    further = {name: g[name] for name, usual in (("scale", None), ("enable_gqa", False)) if g.get(name) != usual}
    return _call(F.scaled_dot_product_attention, *first, **further)


def _interpolation(mode: str, antialias: bool = False) -> Write:
    def write(g: Given) -> Spelled:
        size, factors = (None if g.get(name) is None else tuple(g[name]) for name in ("output_size", "scale_factors"))
        further = {"antialias": True} if antialias else {}
        align = g.get("align_corners")
        return _call(F.interpolate, g["input"], size, factors, mode, align, **further)

    return write


def _slice(g: Given) -> Spelled | Same:
    start, end = (None if g[name] == usual else g[name] for name, usual in (("start", 0), ("end", END)))
    step = None if g["step"] == 1 else g["step"]
    if start is None and end is None and step is None:
        return Same(g["self"])
    return _indexed(g, slice(start, end, step))


def _select(g: Given) -> Spelled:
    return _indexed(g, g["index"])


def _indexed(g: Given, index: Any) -> Spelled:
    if not isinstance(g["dim"], int) or g["dim"] < 0:
        places = (Ellipsis, index, *[slice(None)] * (-1 - g["dim"]))
    else:
        places = (*[slice(None)] * g["dim"], index)
    return _call(operator.getitem, g["self"], places)


def joined_index(inner: Any, outer: Any) -> tuple[Any, ...] | None:
    """Return the index that takes at once what two take one after the other; None where they are no plain slices."""
    if not isinstance(inner, tuple) or not isinstance(outer, tuple):
        return None
    if not all(isinstance(one, slice) for one in inner) or Ellipsis in outer:
        return None
    length, whole = max(len(inner), len(outer)), slice(None)
    first, second = ((*index, *[whole] * (length - len(index))) for index in (inner, outer))
    pairs = list(zip(first, second, strict=True))
    if any(whole not in pair for pair in pairs):
        return None
    return tuple(b if a == whole else a for a, b in pairs)


def _index(g: Given) -> Spelled:
    return _call(operator.getitem, g["self"], tuple(slice(None) if i is None else i for i in g["indices"]))


def _embedding_bag(g: Given) -> Spelled:
    first = (
        g["indices"],
        g["weight"],
        g["offsets"],
        None,
        2.0,
        g["scale_grad_by_freq"],
        ("sum", "mean", "max")[g["mode"]],
    )
    padding = g.get("padding_idx")
    further = g["sparse"], g["per_sample_weights"], g["include_last_offset"], None if padding == -1 else padding
    return _call(F.embedding_bag, *first, *further)


def _adaptive_max_pool(n: int) -> Write:
    function = getattr(F, f"adaptive_max_pool{n}d")
    return lambda g: _call(function, g["self"], tuple(g["output_size"]))


def _einsum(g: Given) -> Spelled:
    return _call(torch.einsum, g["equation"], *g["tensors"])


def _tensordot(g: Given) -> Spelled:
    return _call(torch.tensordot, g["self"], g["other"], (list(g["dims_self"]), list(g["dims_other"])))


def _question(name: str) -> Write:
    return lambda g: _method(name, g["self"], *([g["dim"]] if "dim" in g else []))


def _to(g: Given) -> Spelled:
    """``x.to(dtype)`` in all its spellings; programs also say that tensors are strided."""
    first = [g["other"]] if g.get("other") is not None else []
    given = {name: g[name] for name in ("device", "dtype", "memory_format") if g.get(name) is not None}
    given |= {name: True for name in ("non_blocking", "copy") if g.get(name)}
    return _method("to", g["self"], *first, **given)


def _to_copy(g: Given) -> Spelled:
    given = {name: g[name] for name in ("dtype", "device", "memory_format") if g[name] is not None}
    return _method("to", g["self"], **given, copy=True)


_MODES_OF_CDIST = ("use_mm_for_euclid_dist_if_necessary", "use_mm_for_euclid_dist", "donot_use_mm_for_euclid_dist")


def _cdist(g: Given) -> Spelled:
    return _call(torch.cdist, g["x1"], g["x2"], g["p"], _MODES_OF_CDIST[g["compute_mode"] or 0])


def _of_core_aten(read: Callable[[Given], core_aten.Called]) -> Write:
    def write(g: Given) -> Spelled:
        function, args = read(g)
        return _call(function, *args)

    return write


SPECIAL: Mapping[str, Write] = {
    **{name: _of_core_aten(read) for name, read in core_aten.ROWS.items()},
    "cdist": _cdist,
    "embedding": _embedding,
    "embedding_bag": _embedding_bag,
    **{f"adaptive_max_pool{n}d": _adaptive_max_pool(n) for n in (1, 2, 3)},
    "batch_norm": _batch_norm,
    "instance_norm": _instance_norm,
    "layer_norm": _layer_norm,
    "group_norm": _group_norm,
    "scaled_dot_product_attention": _attention,
    "slice": _slice,
    "select": _select,
    "split_with_sizes": lambda g: _method("split", g["self"], list(g["split_sizes"]), g["dim"]),
    "index": _index,
    "einsum": _einsum,
    "tensordot": _tensordot,
    "sym_size": _question("size"),
    "sym_stride": _question("stride"),
    "sym_numel": _question("numel"),
    "sym_storage_offset": _question("storage_offset"),
    "item": _question("item"),
    "_local_scalar_dense": _question("item"),
    "to": _to,
    "_to_copy": _to_copy,
    "lift_fresh": lambda g: Same(g["self"]),
    "lift_fresh_copy": lambda g: _method("clone", g["self"]),
    "detach_": lambda g: Same(g["self"]),
    "alias": lambda g: Same(g["self"]),
    "numpy_T": lambda g: _call(getattr, g["self"], "T"),
    "mT": lambda g: _call(getattr, g["self"], "mT"),
    "_assert_tensor_metadata": lambda g: Same(None),
    "sym_constrain_range": lambda g: Same(None),
    "sym_constrain_range_for_size": lambda g: Same(None),
    **{f"upsample_nearest{n}d": _interpolation("nearest") for n in (1, 2, 3)},
    **{f"_upsample_nearest_exact{n}d": _interpolation("nearest-exact") for n in (1, 2, 3)},
    "upsample_linear1d": _interpolation("linear"),
    "upsample_bilinear2d": _interpolation("bilinear"),
    "upsample_trilinear3d": _interpolation("trilinear"),
    "upsample_bicubic2d": _interpolation("bicubic"),
    "_upsample_bilinear2d_aa": _interpolation("bilinear", antialias=True),
    "_upsample_bicubic2d_aa": _interpolation("bicubic", antialias=True),
}
"""Operators whose arguments stand in another order, or that several spellings of the user's become."""

GIVES_FIRST = core_aten.GIVE_FIRST.union(("embedding_bag", *(f"adaptive_max_pool{n}d" for n in (1, 2, 3))))
"""Operators that give several values, of which the user's function gives the first."""

FLAGGED = frozenset(("hardswish", "hardsigmoid", "silu", "mish", "relu6", "celu", "selu", "dropout", "threshold"))
"""Functions that work in place where they are told ``inplace=True``."""

FEW_OVERLOADS = {"index": ("Tensor",), "slice": ("Tensor",), "select": ("int",), "dropout": ("default",)}
"""Operators of which only these overloads are what the row says."""


def has_row(target: Any) -> bool:
    """Tell whether an overload of ATen has a row."""
    return _row_of(target) is not None


def gives_first(node: Node) -> bool:
    """Tell whether the call that a node becomes gives the first of the values that the node gives."""
    return has_row(node.target) and _name(node.target) in GIVES_FIRST


def _name(target: Any) -> str:
    return str(target._schema.name).partition("::")[2]


def spell(node: Node) -> Spelled | Same:
    """Return the call that a node of an exported program is. What has no row stays what it is."""
    row = _row_of(node.target)
    if row is None or (gives_first(node) and not _reads_only_first(node)):
        return node.op, node.target, node.args, dict(node.kwargs)
    return row(_given(node))


def _reads_only_first(node: Node) -> bool:
    return all(user.target is operator.getitem and user.args[1] == 0 for user in node.users)


def _row_of(target: Any) -> Write | None:
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return None
    name = _name(target)
    overload = target._schema.overload_name or "default"
    if name in FEW_OVERLOADS and overload not in FEW_OVERLOADS[name]:
        return None
    if name in SPECIAL:
        fits = not name.lstrip("_").startswith("upsample") or overload == "vec"
        return SPECIAL[name] if fits else None
    in_place = name.endswith("_") and target._schema.is_mutable
    plain = name[:-1] if in_place else name
    if overload == "out" or overload.endswith("_out"):
        return None
    by_symbol = name.startswith("__") and name.endswith("__")  # x & y
    if name in IN_PLACE_ONLY or ((plain in METHODS or by_symbol) and hasattr(torch.Tensor, name)):
        return _by_method(name, target)
    if plain not in FUNCTIONS:
        return None
    if not in_place:
        return _by_function(FUNCTIONS[plain], plain)
    if plain in FLAGGED:
        return _by_function(FUNCTIONS[plain], plain, inplace=True)
    function = getattr(F, name, None) or getattr(torch, name, None)
    return None if function is None else _by_function(function, plain)


def _by_method(name: str, target: Any) -> Write:
    takes_tensor = isinstance(target._schema.arguments[0].type, torch.TensorType)

    def write(g: Given) -> Spelled:
        args, kwargs = _arguments(g)
        if takes_tensor and isinstance(args[0], Node):
            return "call_method", name, args, kwargs
        return "call_function", getattr(torch, name, target), args, kwargs  # 2 ** x: a number has no such method

    return write


def _by_function(function: Any, name: str, **further: Any) -> Write:
    def write(g: Given) -> Spelled:
        args, kwargs = _arguments(g)
        return "call_function", function, args, {**kwargs, **further}

    return write


def _arguments(g: Given) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Split what was given into positional and keyword arguments, as users write them."""
    written: Iterable[tuple[str, Any]] = g[WRITTEN]
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for name, value in written:
        value = tuple(value) if name in TUPLES and isinstance(value, (list, tuple)) else value
        if name in KEYWORDS or name in g[ONLY_KEYWORDS] or kwargs:
            kwargs[name] = value
        else:
            args.append(value)
    if kwargs.get("pin_memory") is False:
        del kwargs["pin_memory"]
    return tuple(args), kwargs


WRITTEN, ONLY_KEYWORDS = "(written)", "(only keywords)"
"""Entries of ``Given`` that no schema has: the arguments that stand in the graph, and the names of keywords."""


def _given(node: Node) -> Given:
    target: Any = node.target
    schema = target._schema.arguments
    places = [argument.name for argument in schema if not argument.kwarg_only]
    written = dict(zip(places, node.args, strict=False)) | dict(node.kwargs)
    defaults = {argument.name: argument.default_value for argument in schema if argument.has_default_value()}
    missing = {argument.name: None for argument in schema}
    return {
        **missing,
        **defaults,
        **written,
        WRITTEN: tuple(written.items()),
        ONLY_KEYWORDS: frozenset(argument.name for argument in schema if argument.kwarg_only),
    }
