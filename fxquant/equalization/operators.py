"""Tells, operator by operator, whether a factor of a channel passes: the table that regions are found by."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import Node
from torch.fx.node import map_arg

from fxquant.equalization.channels import Ids
from fxquant.equalization.layers import LAYER_RULES
from fxquant.equalization.tracker import Clamped, Part, Result, Rule, Spread, Tracked, Tracker, shape_of
from fxquant.graph.affine import ChannelAffine
from fxquant.graph.query import canonical_type, has_hooks, is_shape_query, module_of, reason_of
from fxquant.patterns.elementwise import CLAMPS, clamp_of
from fxquant.patterns.shape import CASTS, DATA_MOVEMENT, ZERO_PAD_MODULES, padding_value

LARGEST = 1 << 24
"""Values of a tensor that is moved to see where its channels go; regions end at larger ones."""


def rule_of(node: Node) -> Rule | None:
    """Return the rule of a node; None where no factor passes."""
    if reason_of(node) is not None:
        return None
    module = module_of(node)
    if module is None:
        if node.op not in ("call_function", "call_method"):
            return None
        return _nothing if is_shape_query(node) else FUNCTIONS.get(node.target)
    if has_hooks(module) or getattr(module, "parametrizations", None):
        return None
    return MODULES.get(type(module) if isinstance(module, ChannelAffine) else canonical_type(module))


def is_data_movement(node: Node) -> bool:
    """Tell whether a node gives the values that it reads, in other places or shapes."""
    return rule_of(node) in (_moved, _through) and node.target not in _COMPUTES


def _nothing(tracker: Tracker, node: Node) -> Result:
    """Shapes are the same whatever the factors are."""
    return None


def _through(tracker: Tracker, node: Node) -> Result:
    """A multiple of the input gives that multiple of the result, element by element."""
    return tracker.spread_of(node.args[0])


def _clamp(tracker: Tracker, node: Node) -> Result:
    """A factor moves the bounds, except for 0."""
    tracked, bounds = tracker.of(node.args[0]), clamp_of(node)
    if tracked is None:
        return None
    if bounds is None or (bounds.low or 0.0) > 0 or (bounds.high or 0.0) < 0:
        return f"{node.name} clamps it to bounds that do not hold 0, or are computed"
    low, high = bounds.low or None, bounds.high or None
    if low is None and high is None:
        return tracked
    if not tracker.with_data:
        shown = ", ".join(f"{bound:g}" for bound in (low, high) if bound is not None)
        return f"{node.name} clamps it to {shown}, and no data tells how near its values come"
    tracker.clamps.append(Clamped(node, tracked, low, high))
    return tracked


def _sum(tracker: Tracker, node: Node) -> Result:
    """Both operands of a sum have the same factors."""
    a, b = (tracker.of(operand) for operand in node.args[:2])
    if a is None and b is None:
        return None
    if a is None or b is None:
        other = node.args[0] if a is None else node.args[1]
        name = other.name if isinstance(other, Node) else repr(other)
        return f"{node.name} adds {name}, which cannot be scaled"
    if (a.axis, len(a.ids)) != (b.axis, len(b.ids)):
        return f"{node.name} adds values whose channels lie along other dimensions"
    tracker.channels.join(a.ids, b.ids)
    return a


def _product(tracker: Tracker, node: Node) -> Result:
    """One operand of a product may be scaled; the other, a gate say, keeps its scale."""
    first, second = node.args[:2]
    if not (isinstance(first, Node) and isinstance(second, Node)):
        return tracker.spread_of(first if isinstance(first, Node) else second)
    a, b = tracker.of(first), tracker.of(second)
    if a is not None and b is not None:
        tracker.channels.fix(b.ids, f"{node.name} multiplies it by another value, which is scaled in its place")
    tracked = b if a is None else a
    return _with_channels(node, tracked)


def _quotient(tracker: Tracker, node: Node) -> Result:
    divisor = tracker.of(node.args[1])
    if node.kwargs.get("rounding_mode") is not None or node.args[1] == 0:
        return f"no factor passes through {node.name}"
    if not isinstance(node.args[1], Node):
        return tracker.spread_of(node.args[0])
    if divisor is not None:
        tracker.channels.fix(divisor.ids, f"{node.name} divides by it")
    return _with_channels(node, tracker.of(node.args[0]))


def _matrix_product(tracker: Tracker, node: Node) -> Result:
    """The columns of the second factor are those of the product, as attention adds values up.

    A sum over channels of both, as of queries with keys, undoes a factor of one by that of the other.
    """
    left, right = (tracker.spread_of(factor) for factor in node.args[:2])
    if left is not None and right is not None and (pairs := _summed(left, right)) is not None:
        tracker.sum(node, *pairs)
        return None
    if left is not None:
        tracker.channels.fix(left.ids, f"{node.name} multiplies it by other values")
    if right is None:
        return None
    shape, own = shape_of(node), shape_of(node.args[1])  # type: ignore[arg-type]
    if shape is None or own is None or len(own) < 2 or -2 in right.axes:
        return f"{node.name} sums over its channels"
    if any(-axis > len(shape) or shape[axis] != own[axis] for axis in right.axes):
        return f"{node.name} expands it along its channels"
    return right


def _summed(left: Tracked | Spread, right: Tracked | Spread) -> tuple[Ids, Ids] | None:
    """Return which channels of both operands a matrix product multiplies with each other, if it sums over channels.

    Heads stand along other dimensions; where one operand has none there, its channels meet those of all heads.
    """
    heads = sorted({*left.axes[:-1], *right.axes[:-1]})
    if (left.axes[-1], right.axes[-1]) != (-1, -2) or any(axis >= -2 for axis in heads):
        return None
    rows = []
    for each in (left, right):
        sizes = dict(zip(each.axes, each.sizes if isinstance(each, Spread) else (len(each.ids),), strict=True))
        rows.append(torch.tensor(each.ids).view([*(sizes.get(axis, 1) for axis in heads), sizes[each.axes[-1]]]))
    try:
        queries, keys = torch.broadcast_tensors(*rows)
    except RuntimeError:  # the example has other numbers of heads
        return None
    return tuple(queries.flatten().tolist()), tuple(keys.flatten().tolist())


def _with_channels(node: Node, tracked: Tracked | None) -> Result:
    """Refuse a result that has another number of channels, since the operand was expanded."""
    shape = shape_of(node)
    if tracked is None:
        return None
    if shape is None or shape[tracked.axis] != len(tracked.ids):
        return f"{node.name} expands it along its channels"
    return tracked


def _pool(spatial: int) -> Rule:
    def rule(tracker: Tracker, node: Node) -> Result:
        tracked = tracker.of(node.args[0])
        if tracked is not None and tracked.axis >= -spatial:
            return f"{node.name} pools along its channels"
        return tracked

    return rule


def _interpolated(tracker: Tracker, node: Node) -> Result:
    tracked, shape = tracker.of(node.args[0]), shape_of(node)
    if tracked is not None and (shape is None or tracked.axis > 1 - len(shape)):
        return f"{node.name} interpolates along its channels"
    return tracked


def _reduced(tracker: Tracker, node: Node) -> Result:
    """A mean over other dimensions than the channels. Dimensions that it drops move the channels to the end."""
    tracked: Any = tracker.of(node.args[0])
    source: Any = node.args[0]
    _, dims, keepdim = (*node.args, None, False)[:3]
    shape = shape_of(source)
    if tracked is None:
        return None
    if shape is None or not isinstance(dims, (tuple, list)) or node.kwargs.get("dtype") is not None:
        return f"{node.name} goes over its channels"
    gone = {dim - len(shape) if dim >= 0 else dim for dim in dims}
    if tracked.axis in gone:
        return f"{node.name} goes over its channels"
    return tracked if keepdim else Tracked(tracked.axis + sum(dim > tracked.axis for dim in gone), tracked.ids)


def _padded(tracker: Tracker, node: Node) -> Result:
    """Padding with 0, or with values, of other dimensions than the channels."""
    tracked, amounts, mode = tracker.of(node.args[0]), node.args[1], node.args[2]
    if tracked is None:
        return None
    if mode == "constant" and padding_value(node) != 0:
        return f"{node.name} pads with another number than 0"
    if not isinstance(amounts, (tuple, list)) or tracked.axis >= -(len(amounts) // 2):
        return f"{node.name} pads along its channels"
    return tracked


def _padded_by_module(tracker: Tracker, node: Node) -> Result:
    tracked, module = tracker.of(node.args[0]), module_of(node)
    if tracked is None:
        return None
    if getattr(module, "value", 0) != 0:
        return f"{node.name} pads with another number than 0"
    padding: Any = getattr(module, "padding", ())
    return f"{node.name} pads along its channels" if tracked.axis >= -(len(padding) // 2) else tracked


def _concatenated(tracker: Tracker, node: Node) -> Result:
    """Along the channels, the channels of one part follow those of another; along others, the parts are alike."""
    parts: Any = node.args[0]
    found = [tracker.of(part) for part in parts]
    first = next((part for part in found if part is not None), None)
    shape = shape_of(node)
    if first is None:
        return None
    if shape is None or any(part is not None and part.axis != first.axis for part in found):
        return f"{node.name} joins values whose channels lie along other dimensions"
    dim: Any = node.args[1]
    if (dim - len(shape) if dim >= 0 else dim) == first.axis:
        ids: list[int] = []
        for part, node_of in zip(found, parts, strict=True):
            ids += part.ids if part is not None else _fixed(tracker, node_of, first.axis)
        return Tracked(first.axis, tuple(ids))
    for part, node_of in zip(found, parts, strict=True):
        if part is None:
            return f"{node.name} joins it with {node_of.name}, which cannot be scaled"
        tracker.channels.join(first.ids, part.ids)
    return first


def _fixed(tracker: Tracker, node: Node, axis: int) -> tuple[int, ...]:
    """Add channels of a value that cannot be scaled."""
    shape = shape_of(node) or ()
    ids = tracker.channels.new(shape[axis])
    tracker.channels.fix(ids, tracker.reason(node))
    return ids


def _moved(tracker: Tracker, node: Node) -> Result:
    """Find out where channels go by moving their numbers."""
    source: Any = node.args[0]
    if isinstance(node.args[1] if len(node.args) > 1 else None, int) and isinstance(tracker.values.get(source), tuple):
        parts: Any = tracker.values[source]
        return parts[node.args[1]] if node.target is operator.getitem else f"no factor passes through {node.name}"
    # The input, and what says where its values go, must be known.
    tracked, shape = tracker.spread_of(source), shape_of(source)
    if tracked is None:
        return None
    if shape is None or torch.Size(shape).numel() > LARGEST:
        return f"{node.name} moves values of unknown shape, or too many"
    others = [other for other in node.all_input_nodes if other is not source]
    if any(other.name not in tracker.numbers for other in others):
        return f"{node.name} moves values by what is computed"
    # Move the numbers of the channels as the operator moves values, and read where they went.
    sizes = [shape[dim] if dim - len(shape) in tracked.axes else 1 for dim in range(len(shape))]
    numbers = torch.tensor(tracked.ids).view(sizes).expand(shape)
    args, kwargs = map_arg((node.args[1:], node.kwargs), lambda other: tracker.numbers[other.name])
    try:
        moved = _call(node, numbers, args, kwargs)
    except Exception:
        return f"no factor passes through {node.name}"
    parts = [_channels_in(part, tracked.axes[-1]) for part in (moved if isinstance(moved, (tuple, list)) else (moved,))]
    if any(part is None for part in parts):
        return f"no factor passes through {node.name}"
    return tuple(parts) if isinstance(moved, (tuple, list)) else parts[0]


def _call(node: Node, numbers: Tensor, args: Any, kwargs: Any) -> Any:
    if isinstance(node.target, str) and node.op == "call_method":
        return getattr(numbers, node.target)(*args, **kwargs)
    function: Any = module_of(node) if node.op == "call_module" else node.target
    return function(numbers, *args, **kwargs)


def _channels_in(numbers: Any, usual: int) -> Part:
    """Return the dimensions along which numbers of channels differ, with the numbers; None if it holds none."""
    if not isinstance(numbers, Tensor) or numbers.numel() == 0 or numbers.dim() == 0:
        return None
    axes = [axis for axis in range(-numbers.dim(), 0) if bool((numbers != numbers.narrow(axis, 0, 1)).any())]
    if len(axes) > 1:
        one = numbers[tuple(slice(None) if dim - numbers.dim() in axes else 0 for dim in range(numbers.dim()))]
        return Spread(tuple(axes), tuple(one.shape), tuple(one.flatten().tolist()))
    axis = axes[0] if axes else max(usual, -numbers.dim())
    row = numbers.movedim(axis, 0).reshape(numbers.shape[axis], -1)[:, 0]
    return Tracked(axis, tuple(row.tolist()))


_SPATIAL = {
    **{1: (F.max_pool1d, F.avg_pool1d, F.adaptive_avg_pool1d, F.adaptive_max_pool1d)},
    **{2: (F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d, F.adaptive_max_pool2d)},
    **{3: (F.max_pool3d, F.avg_pool3d, F.adaptive_avg_pool3d, F.adaptive_max_pool3d)},
}
_THROUGH = (
    F.relu,
    F.leaky_relu,
    F.dropout,
    torch.neg,
    torch.abs,
    torch.clone,
    torch.detach,
    torch.positive,
    operator.pos,
)
_COMPUTES = (F.relu, F.leaky_relu, torch.neg, torch.abs)
"""Those of them that give other values."""
_THROUGH_METHODS = ("contiguous", "clone", "detach", "to", "type_as", "cpu", *CASTS)

FUNCTIONS: dict[Any, Rule] = {
    **{target: _moved for pattern in DATA_MOVEMENT for target in pattern.root.targets if not isinstance(target, type)},
    **dict.fromkeys((*_THROUGH, *_THROUGH_METHODS), _through),
    **{target: _clamp for target in CLAMPS if target is not F.relu},
    **{pool: _pool(spatial) for spatial, pools in _SPATIAL.items() for pool in pools},
    torch.add: _sum,
    torch.sub: _sum,
    torch.mul: _product,
    torch.div: _quotient,
    torch.matmul: _matrix_product,
    torch.bmm: _matrix_product,
    torch.mean: _reduced,
    torch.sum: _reduced,
    torch.cat: _concatenated,
    F.pad: _padded,
    F.interpolate: _interpolated,
}
"""Canonical function or method -> its rule."""

MODULES: dict[Any, Rule] = {
    **LAYER_RULES,
    **dict.fromkeys(ZERO_PAD_MODULES, _padded_by_module),
    **dict.fromkeys((nn.Identity, nn.PReLU, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d), _through),
    **dict.fromkeys((nn.Unflatten, nn.ChannelShuffle), _moved),
}
"""Class of torch -> its rule."""
