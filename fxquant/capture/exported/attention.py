"""Finds the calls of ``nn.MultiheadAttention`` in a program, which has the operators that it computes with."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from fxquant.capture.exported.names import stack_of, torch_class_of
from fxquant.graph.query import attribute_at

_LINEAR = torch.ops.aten.linear.default
_PRODUCTS = (torch.ops.aten.bmm.default, torch.ops.aten.baddbmm.default, torch.ops.aten.matmul.default)
_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default


@dataclass(frozen=True, slots=True, eq=False)
class Attention:
    """One call of an ``nn.MultiheadAttention``."""

    path: str
    module: nn.MultiheadAttention
    args: tuple[Node, Node, Node]
    kwargs: Mapping[str, Any]
    results: Mapping[Node, int]
    """Node of the program -> which item of the call's pair it is."""


_MASKS = (
    (),
    ("attn_mask",),
    ("key_padding_mask",),
    ("key_padding_mask", "attn_mask"),
    ("attn_mask", "key_padding_mask"),
)
"""What the tensors beside query, key and value may be, in the order in which a program reads them."""


def attentions(gm: GraphModule) -> dict[Node, Attention]:
    """Return every node of a program that is part of a call of an ``nn.MultiheadAttention``, with that call.

    Calls that it cannot tell to compute the same are left out: their operators stay what they are.
    """
    groups: dict[str, list[Node]] = {}
    paths: dict[str, str] = {}
    for node in gm.graph.nodes:
        if node.op != "call_function" or isinstance(node.meta.get("val"), (int, torch.SymInt)):
            continue  # programs compute a size once for all that need it
        for key, (path, kind) in stack_of(node).items():
            if torch_class_of(kind) is nn.MultiheadAttention and path:
                groups.setdefault(key, []).append(node)
                paths[key] = path
    found: dict[Node, Attention] = {}
    modules: dict[str, nn.MultiheadAttention] = {}
    for key, nodes in groups.items():
        whole = _read(gm, paths[key], nodes, modules)
        if whole is not None:
            found |= dict.fromkeys(nodes, whole)
    return found


def _read(gm: GraphModule, path: str, nodes: list[Node], modules: dict[str, nn.MultiheadAttention]) -> Attention | None:
    # Find what the nodes read, and what others read of them.
    module = modules.get(path) or _module_at(gm, path, nodes)
    inside = set(nodes)
    outside = _tensors_from_outside(nodes, inside, path)
    results = [node for node in nodes if any(user not in inside for user in node.users)]
    sources = _sources(nodes, inside, outside)
    if module is None or sources is None or not 1 <= len(results) <= 2:
        return None
    # Tell the result from the weights, and whether these are averaged.
    projection = f"{path}.out_proj.weight"
    places = {node: 0 if _comes_of(node, projection, inside) else 1 for node in results}
    if len(set(places.values())) < len(places):
        return None
    weights = any(place == 1 for place in places.values())
    averaged = not weights or next(n for n, place in places.items() if place).target is torch.ops.aten.mean.dim
    fixed: dict[str, Any] = {} if averaged else {"average_attn_weights": False}
    fixed["need_weights"] = not any(node.target is _ATTENTION for node in nodes)
    # Try the ways to call the layer: one of them gives the same nodes.
    masks = [node for node in outside if node not in sources]
    layouts = (True, False) if any(other.batch_first for other in modules.values()) else (False, True)
    for names in _MASKS:
        if len(names) != len(masks):
            continue
        kwargs = {**fixed, **dict(zip(names, masks, strict=True))}
        for batch_first in layouts:  # what another attention of the program has is the likely one
            module.batch_first = batch_first
            found = Attention(path, module, sources, kwargs, places)
            if modules.get(path, module).batch_first is batch_first and _is_same(gm, found, nodes, outside):
                modules[path] = module
                return found
    return None


def _module_at(gm: GraphModule, path: str, nodes: list[Node]) -> nn.MultiheadAttention | None:
    """Make the module that holds the parameters at a path; None if it holds what programs do not tell apart."""
    named = {
        name.removeprefix(f"{path}."): tensor for name, tensor in gm.named_parameters() if name.startswith(f"{path}.")
    }
    width = _head_width(nodes)
    out = named.pop("out_proj.weight", None)
    if width is None or out is None or named.keys() - _NAMES:
        return None
    embed = out.shape[0]
    separate = "q_proj_weight" in named
    dims = (named["k_proj_weight"].shape[1], named["v_proj_weight"].shape[1]) if separate else (embed, embed)
    bias = "in_proj_bias" in named
    module = nn.MultiheadAttention(embed, embed // width, bias=bias, kdim=dims[0], vdim=dims[1], device="meta")
    if embed % width or (module.in_proj_weight is None) is not separate:
        return None
    for name, tensor in named.items():
        holder, _, own = name.rpartition(".")
        module.get_submodule(holder).register_parameter(own, tensor)
    module.out_proj.weight = out
    return module.eval()


_NAMES = {"in_proj_weight", "in_proj_bias", "out_proj.bias", "q_proj_weight", "k_proj_weight", "v_proj_weight"}


def _head_width(nodes: Iterable[Node]) -> int | None:
    """Return the number of channels of a head: the last dimension of what is multiplied by the keys."""
    for node in nodes:
        if node.target is _ATTENTION or node.target in _PRODUCTS:
            first: Any = node.args[1 if node.target is torch.ops.aten.baddbmm.default else 0]
            width = first.meta["val"].shape[-1]
            return width if isinstance(width, int) else None
    return None


def _tensors_from_outside(nodes: Iterable[Node], inside: set[Node], path: str) -> list[Node]:
    found: dict[Node, None] = {}
    for node in nodes:
        for source in node.all_input_nodes:
            own = source.op == "get_attr" and str(source.target).startswith(f"{path}.")
            if source not in inside and not own and isinstance(source.meta.get("val"), Tensor):
                found[source] = None
    return list(found)


def _sources(nodes: Sequence[Node], inside: set[Node], outside: Sequence[Node]) -> tuple[Node, Node, Node] | None:
    """Return query, key and value: what the projections read, in their order."""
    found: list[Node] = []
    for node in nodes:
        if node.target is _LINEAR and (source := _origin(node.args[0], inside, outside)) is not None:
            found.append(source)
    if len(found) == 1:
        return found[0], found[0], found[0]
    if len(found) == 2:
        return found[0], found[1], found[1]
    return (found[0], found[1], found[2]) if len(found) == 3 else None


def _origin(node: Any, inside: set[Node], outside: Sequence[Node]) -> Node | None:
    """Return what comes from outside, through operators that have one tensor each."""
    while node in inside:
        tensors = [source for source in node.all_input_nodes if isinstance(source.meta.get("val"), Tensor)]
        if len(tensors) != 1:
            return None
        node = tensors[0]
    return node if node in outside else None


def _comes_of(node: Node, path: str, inside: set[Node]) -> bool:
    waiting = [node]
    while waiting:
        one = waiting.pop()
        if one.op == "get_attr" and one.target == path:
            return True
        waiting += [source for source in one.all_input_nodes if source in inside or source.op == "get_attr"]
    return False


def _is_same(gm: GraphModule, found: Attention, nodes: Sequence[Node], outside: Sequence[Node]) -> bool:
    """Tell whether the module gives what the operators give, on random inputs of the program's sizes."""
    generator = torch.Generator().manual_seed(0)
    values: dict[Node, Any] = {node: _random(node, generator) for node in outside}

    def value(node: Node) -> Any:
        if node not in values:
            known = node.meta.get("val")
            values[node] = attribute_at(gm, str(node.target)) if node.op == "get_attr" else _hint(known)
        return values[node]

    try:
        with torch.no_grad():
            args, kwargs = map_arg((found.args, dict(found.kwargs)), value)
            given = found.module(*args, **kwargs)
            for node in nodes:
                function: Any = node.target
                own, named = map_arg((node.args, node.kwargs), value)
                values[node] = function(*own, **named)
    except (RuntimeError, TypeError, ValueError, AssertionError, IndexError):
        return False
    pairs = [(given[item], values[node]) for node, item in found.results.items()]
    return all(a is not None and a.shape == b.shape and torch.allclose(a, b, atol=1e-4, rtol=1e-3) for a, b in pairs)


def _random(node: Node, generator: torch.Generator) -> Tensor:
    known = node.meta["val"]
    shape = [_hint(size) for size in known.shape]
    if known.dtype is torch.bool:
        mask = (torch.rand(shape, generator=generator) < 0.3).to(known.device)
        mask[..., :1] = False  # a query that may read no key gives no number
        return mask
    values = torch.randn(shape, generator=generator) / math.sqrt(max(shape[-1:], default=1) or 1)
    return values.to(known.device, known.dtype)


def _hint(size: Any) -> Any:
    """Return the size of the example that a program was exported with."""
    if not isinstance(size, torch.SymInt):
        return size
    hint: Any = size.node.hint
    return int(hint)
