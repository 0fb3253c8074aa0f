"""Attention as the operators that it is made of: projections, products, a scale, masks, softmax."""

from __future__ import annotations

import inspect
import math
import operator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torch.nn.utils import parametrize

from fxquant.graph.constants import Aside, ComputedLayer
from fxquant.graph.edit import Emitter
from fxquant.graph.query import CALLED, COMPUTED_OF, TensorInfo, module_of, value_of

INPUT_LAYERS = ("q_proj", "k_proj", "v_proj")
LAYERS = (*INPUT_LAYERS, "out_proj")
"""Names of the linear layers that stand for an ``nn.MultiheadAttention``, below its own path."""

DROPOUT = "weights_dropout"
"""Name of what drops weights while training, below the same path."""

ADDED_KEYS = "attention with add_bias_kv or add_zero_attn (keys and values of its own) is not taken apart"
TAKEN = "attention with an attribute of its own named {!r} is not taken apart"
COMPUTED = "whether attention gives its weights is computed at run time, so it is not taken apart"
UNKNOWN = "attention on something that is no plain tensor is not taken apart"


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """One call of an ``nn.MultiheadAttention``, its arguments by name."""

    module: Any
    query: Node
    key: Node
    value: Node
    key_padding_mask: Node | None
    attn_mask: Node | None
    average: bool
    wants_weights: bool
    """Whether anything reads the weights."""

    @property
    def batched(self) -> bool:
        return len(_info(self.query).shape) == 3


def read_call(node: Node) -> AttentionCall | str:
    """Return the arguments of a call of an ``nn.MultiheadAttention``, or why it cannot be taken apart."""
    module: Any = module_of(node)
    if module.bias_k is not None or module.add_zero_attn:
        return ADDED_KEYS
    if not _has_layers(module) and (taken := [name for name in (*INPUT_LAYERS, DROPOUT) if hasattr(module, name)]):
        return TAKEN.format(taken[0])
    bound = inspect.signature(nn.MultiheadAttention.forward).bind(module, *node.args, **node.kwargs)
    bound.apply_defaults()
    given = bound.arguments
    flags = (given["need_weights"], given["average_attn_weights"], given["is_causal"])
    if any(isinstance(flag, Node) for flag in flags):
        return COMPUTED
    tensors = [given[name] for name in ("query", "key", "value")]
    masks = [given[name] for name in ("key_padding_mask", "attn_mask")]
    if any(not isinstance(tensor, Node) or value_of(tensor) is None for tensor in tensors):
        return UNKNOWN
    if any(mask is not None and (not isinstance(mask, Node) or value_of(mask) is None) for mask in masks):
        return UNKNOWN
    return AttentionCall(
        module,
        query=tensors[0],
        key=tensors[1],
        value=tensors[2],
        key_padding_mask=masks[0],
        attn_mask=masks[1],
        average=bool(given["average_attn_weights"]),
        wants_weights=bool(given["need_weights"]) and _reads_item(node, 1),
    )


def _reads_item(node: Node, index: int) -> bool:
    """Tell whether a reader may take one item of the tuple that a node gives."""
    return any(picked_item(user) in (index, None) for user in node.users if user.users or user.op == "output")


def picked_item(user: Node) -> int | None:
    """Return the index of the item of a pair that a reader takes, or None if it takes both."""
    if user.target is not operator.getitem or not isinstance(user.args[1], int):
        return None
    return user.args[1] % 2


def give_layers(module: Any) -> None:
    """Give an ``nn.MultiheadAttention`` the layers that it holds in one weight, or as bare parameters."""
    width, bias = module.embed_dim, module.in_proj_bias
    separate = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    for i, name in enumerate(INPUT_LAYERS):
        part = slice(i * width, (i + 1) * width)
        weight = separate[i] if module.in_proj_weight is None else module.in_proj_weight[part]
        module.add_module(name, _linear(weight, None if bias is None else bias[part]))
    module.add_module("out_proj", module._modules.pop("out_proj"))  # the last, as it is called
    if module.dropout:
        module.add_module(DROPOUT, nn.Dropout(module.dropout).train(module.training))


def _has_layers(module: Any) -> bool:
    """Tell whether another call of the same attention has given it its layers already."""
    return all(isinstance(getattr(module, name, None), nn.Linear) for name in INPUT_LAYERS)


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    layer = nn.Linear(1, 1, bias=False, device="meta")
    layer.out_features, layer.in_features = weight.shape
    layer.weight = nn.Parameter(weight.detach().clone(), weight.requires_grad)
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach().clone(), bias.requires_grad)
    return layer


def sources_of_layers(gm: GraphModule, path: str, module: Any, aside: Aside) -> dict[str, ComputedLayer]:
    """Map each layer to the slice of a parameter of ``nn.MultiheadAttention`` that it has, where it is not its own."""
    found: dict[str, ComputedLayer] = {}
    whole = None if module.in_proj_weight is None else aside.attribute(gm, path, "in_proj_weight")
    biases = None if module.in_proj_bias is None else aside.attribute(gm, path, "in_proj_bias")
    for i, name in enumerate(INPUT_LAYERS):
        part = slice(i * module.embed_dim, (i + 1) * module.embed_dim)
        own = aside.attribute(gm, path, f"{name}_weight") if whole is None else aside.item(whole, part)
        bias = {} if biases is None else {"bias": aside.item(biases, part)}
        found[name] = ComputedLayer({"weight": own, **bias}, "")
    inside = f"{path}.out_proj"
    computed = {
        name: aside.attribute(gm, inside, name)
        for name in ("weight", "bias")
        if parametrize.is_parametrized(module.out_proj, name)
    }
    return {**found, "out_proj": ComputedLayer(computed, "")} if computed else found


def emit_multihead(
    call: AttentionCall, emit: Emitter, path: str, *, whole_product: bool, trains: bool = False
) -> tuple[Node, Node | None]:
    """Write the operators of one call.

    Args:
        path: Where the module lies.
        whole_product: Leave the middle part one ``F.scaled_dot_product_attention``, where nothing reads the weights.
        trains: The layers are to be given their parts of the parameters, which stay as they are.

    Returns:
        The two items of the module's result; None in place of the weights where nothing reads them.
    """
    aside = Aside() if trains else None
    computed = {} if aside is None else sources_of_layers(emit.gm, path, call.module, aside)
    if not _has_layers(call.module):
        give_layers(call.module)
    # Project, and give each head its part.
    projected = [
        _apply(emit, f"{path}.{name}", source, computed.get(name))
        for name, source in zip(INPUT_LAYERS, (call.query, call.key, call.value), strict=True)
    ]
    shape = (call.module.num_heads, call.module.head_dim)
    query, key, value = (_heads_first(call, emit, emit.function(torch.unflatten, x, -1, shape)) for x in projected)
    # Attend: in one operator, or in parts where the weights are wanted.
    masks = _masks(call, emit)
    weights = None
    if whole_product and not call.wants_weights:
        mask = _one_mask(masks, query, emit)
        context = emit.function(F.scaled_dot_product_attention, query, key, value, mask)
    else:
        weights = _weights(emit, query, key, 1 / math.sqrt(call.module.head_dim), masks)
        if call.module.dropout:
            weights = emit.module(f"{path}.{DROPOUT}", weights, value=_info(weights))
        context = emit.function(torch.matmul, weights, value)
    # Put the heads together, and project.
    merged = emit.function(torch.flatten, _heads_last(call, emit, context), -2, -1)
    out = _apply(emit, f"{path}.out_proj", merged, computed.get("out_proj"))
    if weights is not None and call.wants_weights:
        return out, emit.method("mean", weights, -3) if call.average else weights
    return out, None


def _apply(emit: Emitter, path: str, x: Node, computed: ComputedLayer | None) -> Node:
    layer: Any = emit.gm.get_submodule(path)
    info = _info(x)
    value = replace(info, shape=(*info.shape[:-1], layer.weight.shape[0]), contiguous=True)
    meta: dict[str, Any] = {CALLED: (path, type(layer))}
    return emit.module(path, x, value=value, meta=meta if computed is None else meta | {COMPUTED_OF: computed})


def _heads_first(call: AttentionCall, emit: Emitter, x: Node) -> Node:
    """Any order of length, batch, head and channel to [batch, head, length, channel]."""
    if not call.batched:
        return emit.function(torch.transpose, x, 0, 1)
    if call.module.batch_first:
        return emit.function(torch.transpose, x, 1, 2)
    return emit.function(torch.permute, x, (1, 2, 0, 3))


def _heads_last(call: AttentionCall, emit: Emitter, x: Node) -> Node:
    if not call.batched:
        return emit.function(torch.transpose, x, 0, 1)
    if call.module.batch_first:
        return emit.function(torch.transpose, x, 1, 2)
    return emit.function(torch.permute, x, (2, 0, 1, 3))


def _masks(call: AttentionCall, emit: Emitter) -> list[Node]:
    """Masks that broadcast to [batch, head, query, key]: True, or what is added, where a key is to be left out."""
    masks = []
    if call.attn_mask is not None:
        mask = call.attn_mask
        if len(_info(mask).shape) == 3 and call.batched:
            mask = emit.function(torch.unflatten, mask, 0, (-1, call.module.num_heads))
        masks.append(mask)
    if call.key_padding_mask is not None:
        mask = call.key_padding_mask
        masks.append(emit.function(torch.unflatten, mask, 0, (-1, 1, 1)) if call.batched else mask)
    return masks


def _one_mask(masks: list[Node], like: Node, emit: Emitter) -> Node | None:
    """Return the sum of masks, as ``F.scaled_dot_product_attention`` takes it."""
    dtype = _info(like).dtype
    added = [
        emit.method("masked_fill", emit.function(torch.zeros_like, mask, dtype=dtype), mask, -math.inf)
        if _info(mask).dtype is torch.bool
        else mask
        for mask in masks
    ]
    return None if not added else added[0] if len(added) == 1 else emit.function(torch.add, *added)


def _weights(emit: Emitter, query: Node, key: Node, scale: Any, masks: list[Node]) -> Node:
    scores = emit.function(torch.matmul, query, emit.function(torch.transpose, key, -2, -1))
    scores = emit.function(torch.mul, scores, scale)
    for mask in masks:
        if _info(mask).dtype is torch.bool:
            scores = emit.method("masked_fill", scores, mask, -math.inf)
        else:
            scores = emit.function(torch.add, scores, mask)
    # A query to which every key is masked gets weights 0, as F.scaled_dot_product_attention has it, and not NaN.
    return emit.function(torch._safe_softmax, scores, -1) if masks else emit.function(F.softmax, scores, -1)


def emit_product(node: Node, emit: Emitter) -> Node | str:
    """Write the operators of a normalized ``F.scaled_dot_product_attention``.

    Returns:
        The node of the result, or why the call cannot be taken apart.
    """
    query, key, value, mask, dropout, causal = node.args
    # Refuse what is not known yet.
    tensors = [query, key, value, *([] if mask is None else [mask])]
    if any(not isinstance(tensor, Node) or value_of(tensor) is None for tensor in tensors):
        return UNKNOWN
    if isinstance(causal, Node) or isinstance(dropout, Node):
        return COMPUTED
    assert isinstance(query, Node)
    assert isinstance(key, Node)
    assert isinstance(value, Node)
    # A group of queries shares a key.
    repeats = _info(query).shape[-3] // _info(key).shape[-3] if node.kwargs.get("enable_gqa") else 1
    if repeats > 1:
        key, value = (emit.function(torch.repeat_interleave, t, repeats, -3) for t in (key, value))
    scale = node.kwargs.get("scale")
    scale = 1 / math.sqrt(_info(query).shape[-1]) if scale is None else scale
    # Mask, weigh, multiply.
    masks = []
    if isinstance(mask, Node):
        masks.append(emit.function(torch.logical_not, mask) if _info(mask).dtype is torch.bool else mask)
    if causal:
        masks.append(_later(emit, query, key))
    weights = _weights(emit, query, key, scale, masks)
    if dropout:
        weights = emit.function(F.dropout, weights, dropout, True)
    return emit.function(torch.matmul, weights, value)


def _later(emit: Emitter, query: Node, key: Node) -> Node:
    """[query, key], True where the key comes later than the query."""
    queries, keys = (emit.method("size", t, -2, value=int) for t in (query, key))
    shape = (_info(query).shape[-2], _info(key).shape[-2])
    value = TensorInfo(shape, torch.bool, _info(query).device)
    everywhere = emit.method("new_ones", query, (queries, keys), dtype=torch.bool, value=value)
    return emit.method("triu", everywhere, 1)


def _info(node: Node) -> TensorInfo:
    info = value_of(node)
    assert info is not None, f"{node.name} is no tensor"
    return info
