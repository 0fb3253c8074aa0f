"""Products and sums with one constant number per channel: what a batch norm computes whose statistics are frozen."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from fxquant.graph.constants import Constants, NotConstantError
from fxquant.graph.macs import CONVOLUTIONS, TRANSPOSED
from fxquant.graph.query import TensorInfo, canonical_type, module_of, reason_of, value_of

_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
_KEEPING = (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, "contiguous", "clone", torch.clone)
"""What may stand between a layer and its norm: most of it goes when no-ops are dropped."""

RANKS = (3, 4, 5)
"""Dimensions of values whose channels are dimension 1, where no layer says so."""


class ChannelAffine(nn.Module):
    """``(x - running_mean) * weight + bias``, channel by channel: a batch norm of variance 1, as far as folding asks.

    It computes what was written, in its order, to the bit. What was not written is not computed: a missing mean is 0
    in ``running_mean``, and ``weight`` or ``bias`` is None.

    Args:
        tensors: ``running_mean``, ``weight``, ``bias``: [C] each, as far as they were written.
        behind: How many dimensions stand behind that of the channels.
        rank: How many dimensions the constants had: ``[1, C, 1, 1]`` has 4.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None
    running_mean: Tensor
    running_var: Tensor
    eps = 0.0

    def __init__(self, tensors: Mapping[str, Tensor], behind: int, rank: int) -> None:
        super().__init__()
        some = next(iter(tensors.values())).contiguous()
        self.num_features, self.behind, self.rank = len(some), behind, rank
        self.is_centered = "running_mean" in tensors
        for name in ("weight", "bias"):
            given = tensors.get(name)
            self.register_parameter(name, None if given is None else nn.Parameter(given.contiguous(), False))
        mean = tensors["running_mean"].contiguous() if self.is_centered else torch.zeros_like(some)
        self.register_buffer("running_mean", mean, persistent=self.is_centered)
        self.register_buffer("running_var", torch.ones_like(some), persistent=False)

    def forward(self, input: Tensor) -> Tensor:
        shape = [1] * (self.rank - 1 - self.behind) + [-1] + [1] * self.behind
        y = input
        if self.is_centered:
            y = y - self.running_mean.reshape(shape)
        if self.weight is not None:
            y = y * self.weight.reshape(shape)
        return y if self.bias is None else y + self.bias.reshape(shape)

    def extra_repr(self) -> str:
        return f"{self.num_features}, behind={self.behind}, rank={self.rank}"


BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, ChannelAffine)
"""What is folded into the layer before it."""


@dataclass(frozen=True, slots=True)
class Step:
    """One operator of it."""

    node: Node
    name: str
    """The tensor of the layer that its constant is: ``"running_mean"``, ``"weight"``, ``"bias"``."""
    constant: Node
    negated: bool


@dataclass(frozen=True, slots=True)
class Affine:
    """Operators that one layer computes."""

    steps: tuple[Step, ...]
    x: Node
    channels: int
    behind: int
    rank: int

    @property
    def root(self) -> Node:
        return self.steps[-1].node


def affines(gm: GraphModule, theirs: Collection[Any]) -> Iterator[Affine]:
    """Yield every such operator after a layer with a weight, and every product and sum together that stand anywhere.

    Args:
        gm: A normalized graph.
        theirs: What patterns of the user's own name.
    """
    constant = _constant_nodes(gm)
    inside: set[Node] = set()
    for node in gm.graph.nodes:
        if node in inside:
            continue
        steps = _steps(node, constant, theirs)
        found = _affine(steps) if steps else None
        if found is not None:
            inside |= {step.node for step in steps}
            yield found


def tensors_of_affine(found: Affine, constants: Constants) -> dict[str, Tensor] | None:
    """Return the tensors of its layer, [C]; None where a constant may change between calls, or masks by infinity."""
    try:
        values = {step.name: constants.value(step.constant) for step in found.steps}
    except NotConstantError:
        return None
    if not all(isinstance(value, Tensor) and bool(torch.isfinite(value).all()) for value in values.values()):
        return None
    negated = {step.name for step in found.steps if step.negated}
    of_channels = {name: per_channel(value.detach(), found.channels) for name, value in values.items()}
    return {name: -value if name in negated else value for name, value in of_channels.items()}


def per_channel(constant: Tensor, channels: int) -> Tensor:
    """Return a constant that is broadcast along the channels, or is one number for all: [C]."""
    return constant.reshape(-1).expand(channels)


def _constant_nodes(gm: GraphModule) -> set[Node]:
    """Return the nodes that depend on no input, as far as the graph shows."""
    constant: set[Node] = set()
    for node in gm.graph.nodes:
        calls = node.op in ("call_function", "call_method") or (node.op == "call_module" and node.all_input_nodes)
        if node.op == "get_attr" or (calls and node.all_input_nodes and constant.issuperset(node.all_input_nodes)):
            constant.add(node)
    return constant


_NEXT = {"running_mean": ("weight",), "weight": ("bias",), "bias": ()}


def _steps(node: Node, constant: set[Node], theirs: Collection[Any]) -> list[Step]:
    """Return the longest chain of a difference, a product and a sum, each with a constant, that begins at a node."""
    first = _step(node, constant, theirs)
    if first is None:
        return []
    steps = [first]
    while len(steps[-1].node.users) == 1:
        following = _step(next(iter(steps[-1].node.users)), constant, theirs)
        if following is None:
            break
        if len(steps) == 1 and first.name == "bias" and following.name == "weight":
            steps = [Step(first.node, "running_mean", first.constant, not first.negated)]
        if following.name not in _NEXT[steps[-1].name]:
            break
        steps.append(following)
    return steps


def _step(node: Node, constant: set[Node], theirs: Collection[Any]) -> Step | None:
    if node.op != "call_function" or node.target not in (torch.mul, torch.add, torch.sub) or node.target in theirs:
        return None
    if node.kwargs or len(node.args) != 2 or reason_of(node) or node in constant:
        return None
    a, b = node.args
    if not isinstance(a, Node) or not isinstance(b, Node):
        return None
    if a in constant and node.target is not torch.sub:
        a, b = b, a
    if b not in constant:
        return None
    x, y, other = value_of(a), value_of(node), value_of(b)
    if x is None or y is None or other is None or not x.has_shape:
        return None
    if not x.dtype == y.dtype == other.dtype or x.shape != y.shape:
        return None
    return Step(node, "weight" if node.target is torch.mul else "bias", b, node.target is torch.sub)


def _affine(steps: list[Step]) -> Affine | None:
    first = steps[0]
    x: Any = next(n for n in first.node.args if n is not first.constant)
    info = value_of(x)
    assert info is not None  # the step has looked
    layer = _layer_before(x)
    if layer is not None:
        behind = 0 if isinstance(layer, nn.Linear) else layer.weight.dim() - 2
    elif len(info.shape) in RANKS and {"weight", "bias"} <= {step.name for step in steps}:
        behind = len(info.shape) - 2
    else:
        return None
    constants = [value_of(step.constant) for step in steps]
    if behind >= len(info.shape) or not all(_is_per_channel(c, info, behind) for c in constants):
        return None
    if layer is None and all(c is not None and max(c.shape, default=1) == 1 for c in constants):
        return None
    rank = max(behind + 1, *(len(c.shape) for c in constants if c is not None))
    return Affine(tuple(steps), x, info.shape[-1 - behind], behind, rank)


def _layer_before(value: Node) -> Any:
    """Return the layer that makes a value, if nothing else reads it, and what stands between them keeps it as it is."""
    while len(value.users) == 1:
        module = module_of(value)
        kind = None if module is None else canonical_type(module)
        if kind in (nn.Linear, *CONVOLUTIONS, *TRANSPOSED):
            return module
        if (value.target if module is None else kind) not in (nn.Identity, *_DROPOUTS, *_KEEPING):
            return None
        source = value.args[0] if value.args else None
        if not isinstance(source, Node):
            return None
        value = source
    return None


def _is_per_channel(constant: TensorInfo | None, value: TensorInfo, behind: int) -> bool:
    """Tell whether a constant holds one number per channel, or one for all, and adds no dimension to the value."""
    if constant is None or len(constant.shape) > len(value.shape):
        return False
    channels = value.shape[-1 - behind]
    sizes = list(constant.shape)
    if len(sizes) > behind and sizes[-1 - behind] in (1, channels):
        sizes[-1 - behind] = 1
    return set(sizes) <= {1}
