"""A pattern is data: a tree of targets, how inputs and output get their qparams, and a check."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.fx import Node

from fxquant.errors import SpecError
from fxquant.graph.operators.spelling import canonical_target
from fxquant.graph.query import function_name
from fxquant.plan.spec import Clamp, Dynamic, Fixed, QParams, QScheme
from fxquant.registry import check_name


@dataclass(frozen=True, slots=True)
class Input:
    """A leaf of the tree: whatever value stands there, captured under ``name``."""

    name: str
    many: bool = False
    """True: a list or tuple of values, captured as ``name0``, ``name1``, …"""
    constant: bool = False
    """True: only a Python number fits."""


@dataclass(frozen=True, slots=True)
class Op:
    """A node of the tree: a call of one of ``targets`` whose first positional arguments match ``args``.

    Further arguments (strides, dimensions, …) are free. ``commutative`` also tries the first two arguments swapped.

    Raises:
        SpecError: there is nothing to swap.
    """

    targets: tuple[Any, ...]
    args: tuple[Op | Input, ...] = ()
    name: str = ""
    commutative: bool = False

    def __post_init__(self) -> None:
        if self.commutative and len(self.args) < 2:
            raise SpecError(
                f"{function_name(self.targets[0])} is called commutative, but has nothing to swap",
                got=f"{len(self.args)} arguments",
                expected='two, as in op(torch.add, commutative=True)(tensor("a"), tensor("b"))',
            )

    def named(self, name: str) -> Op:
        """Return the same, captured under ``name``."""
        return replace(self, name=name)

    @property
    def size(self) -> int:
        """Return the number of operators in the tree."""
        return 1 + sum(arg.size for arg in self.args if isinstance(arg, Op))

    @property
    def all_targets(self) -> tuple[Any, ...]:
        """Return every target in the tree."""
        return (*self.targets, *(target for arg in self.args if isinstance(arg, Op) for target in arg.all_targets))

    @property
    def captures(self) -> tuple[str, ...]:
        """Return every name in the tree, in the order of evaluation of its arguments, its own last."""
        inner = (n for arg in self.args for n in (arg.captures if isinstance(arg, Op) else (arg.name,)))
        return (*inner, *((self.name,) if self.name else ()))


def op(*targets: Any, commutative: bool = False) -> Callable[..., Op]:
    """Start a tree: ``op(nn.Conv2d)(tensor("x")).named("conv")``.

    A target is a module type, a function, or the name of a method; any spelling that the normalize pass knows
    (``nn.ReLU``, ``torch.relu``, ``"relu"``) stands for the canonical one (``F.relu``).
    """
    canonical = tuple(dict.fromkeys(canonical_target(target) for target in targets))
    return lambda *args: Op(canonical, args, commutative=commutative)


def tensor(name: str) -> Input:
    """Return an input of the unit."""
    return Input(name)


def tensors(name: str) -> Input:
    """Return a list or tuple of inputs: the first argument of ``torch.cat``."""
    return Input(name, many=True)


def number(name: str) -> Input:
    """Return a Python number that stands in the graph: ``2`` in ``x + 2``. Nothing is quantized there."""
    return Input(name, constant=True)


class Output(enum.Enum):
    """Says where the qparams of a unit's output come from. ``Bounded`` or a ``Fixed`` policy may stand there, too."""

    OBSERVED = "its own range, measured"
    PICKED = "those of the first input, whose values are selected or moved: nothing to round"
    CLAMPED = "those of the first input, whose values are clamped: only the bounds may need rounding"
    ONE_FOR_ALL = "the same for all inputs and the output"
    FLOAT = "none: float values come out, and what reads them quantizes them if it needs to"


@dataclass(frozen=True, slots=True)
class Bounded:
    """The output never leaves [low, high], so nothing is measured: the steps of the scheme are spread evenly over it.

    For uint8, [0, 1] is scale 1/256 and zero point 0, [-1, 1] is scale 2/256 and zero point 128: ``high`` itself is one
    step beyond the last integer, so that 0.0 and the scale are exact. A symmetric scheme gets [-high, high].
    """

    low: float
    high: float

    def qparams(self, scheme: QScheme) -> QParams:
        """Return the qparams, in ``scheme``."""
        low = -self.high if scheme.symmetric else self.low
        scale = (self.high - low) / (scheme.quant_max - scheme.quant_min + 1)
        zero_point = scheme.quant_min + round(-low / scale)
        return QParams(scheme, torch.tensor([scale]), torch.tensor([zero_point], dtype=torch.int32))


@dataclass(frozen=True, slots=True)
class Reject:
    """The refusal of a match, which a check returns; the plan tells it as a :class:`Refusal`."""

    reason: str
    node: Node | None = None


Check = Callable[[Mapping[str, Node]], Reject | None]


def all_of(*checks: Check) -> Check:
    """Return the first reason that any of ``checks`` gives."""

    def check(captures: Mapping[str, Node]) -> Reject | None:
        return next((reject for one in checks if (reject := one(captures))), None)

    return check


@dataclass(frozen=True, slots=True)
class UnitView:
    """Shows one unit to the function that builds its lowered module."""

    name: str
    """Name of the unit's output."""
    inputs: tuple[str, ...]
    """Names of the quantized inputs, in the order in which the built module is called with them."""
    nodes: Mapping[str, Node]
    """Capture -> node of the graph, batch norm already folded away."""
    modules: Mapping[str, Any]
    """Capture -> module, for the captures that are module calls."""
    qparams: Mapping[str, QParams]
    """Role -> qparams: the inputs, ``"weight"`` where there is one, and ``"y"``, unless float values are wanted."""
    activation: Clamp | None = None
    """What the node captured as ``act`` does, where there is one."""
    per_call: Mapping[str, Dynamic] = field(default_factory=dict)
    """Role -> how each call chooses its qparams, for the ``dynamic`` captures of the pattern."""

    def arguments(self, capture: str, **defaults: Any) -> tuple[Any, ...]:
        """Return all arguments of a node but the first; ``defaults`` gives their names, order and defaults."""
        node = self.nodes[capture]
        return tuple(
            node.args[place] if place < len(node.args) else node.kwargs.get(name, default)
            for place, (name, default) in enumerate(defaults.items(), start=1)
        )


Build = Callable[[UnitView], nn.Module]


@dataclass(frozen=True, slots=True)
class Pattern:
    """One kind of quantized unit.

    Example:
        >>> conv = op(nn.Conv2d)(tensor("x")).named("conv")
        >>> Pattern("conv_relu", root=op(nn.ReLU)(conv).named("act"), inputs=("x",), weight="conv").root.size
        2
    """

    name: str
    root: Op
    inputs: tuple[str, ...] = ("x",)
    """Captures that must be quantized, in the order in which the lowered operator takes them."""
    weight: str | None = None
    """Capture of the module whose ``weight`` is quantized. Code reads it as ``weight_capture``."""
    weight_axis: int = 0
    """Dimension of that weight that counts the output channels."""
    arithmetic: bool = False
    """True: it multiplies and accumulates without a weight, as a matrix product does. A ``weight`` implies it."""
    output: Output | Bounded | Fixed = Output.OBSERVED
    factor: Callable[[Mapping[str, Any]], float] | None = None
    """Of ``Output.PICKED``: the positive number that the values are multiplied with; it becomes part of the scale."""
    check: Check | None = None
    """Sees the captured nodes, and answers None or the reason to refuse."""
    lower: Mapping[str, Build] = field(default_factory=dict)
    """Name of a back end -> function that builds the int8 module; it overrides the back end's own table."""
    handler: type | None = None
    """A class with ``observe`` and ``quantize`` in place of everything else (see ``register_pattern``)."""
    dynamic: tuple[str, ...] = ()
    """Captures that come as floats. Each call quantizes them by the range that they have then (``is_dynamic``)."""
    per_token: bool = False
    """True: of the ``dynamic`` captures each row has a range of its own."""
    weight_only: bool = False
    """True: for configurations that quantize the weight and leave activations in float."""

    rounds_inside: bool = False
    """True: a recurrent layer, which rounds its input ``x`` and the values between its steps itself. Where it is not
    ``dynamic``, these have one range, under the name of its node."""

    @property
    def weight_capture(self) -> str | None:
        """``weight``: the name under which the layer that holds the weight is captured, not the weight."""
        return self.weight

    @property
    def multiplies(self) -> bool:
        """Tell whether it multiplies and accumulates: then it is worth quantizing for alone, and may give floats."""
        return self.arithmetic or self.weight is not None

    @property
    def can_give_integers(self) -> bool:
        """Tell whether the result can be quantized, if something needs it so."""
        return self.output is not Output.FLOAT and (self.handler is None or hasattr(self.handler, "qparams"))

    def __post_init__(self) -> None:
        check_name("pattern", self.name)
        if not isinstance(self.root, Op):
            raise SpecError(
                f"pattern {self.name!r} has no operator as its root",
                got=repr(self.root),
                expected="Op",
                hint="op(torch.relu)(tensor('x')) makes one",
            )
        missing = [
            name
            for name in (*self.inputs, *self.dynamic, *filter(None, [self.weight]))
            if name not in self.root.captures
        ]
        if missing:
            raise SpecError(
                f"pattern {self.name!r} names what its tree does not capture",
                got=", ".join(missing),
                expected=f"one of {', '.join(self.root.captures)}",
                hint="tensor('x') captures an input, op(...)(...).named('conv') an operator",
            )


@dataclass(frozen=True, slots=True)
class Match:
    """One place where a pattern fits."""

    pattern: Pattern
    nodes: tuple[Node, ...]
    """The operators, in topological order, root last."""
    captures: Mapping[str, Any]
    """Name -> node, or the constant that stands in an input's place."""
    inputs: tuple[str, ...]
    """Names of the quantized inputs, lists expanded (``x0``, ``x1``, …)."""

    @property
    def configured_node(self) -> Node:
        """Return the node whose QConfig is the unit's: the one that holds the weight, else the innermost operator."""
        node: Node = self.captures[self.pattern.weight_capture] if self.pattern.weight_capture else self.nodes[0]
        return node


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A place where the structure of a pattern does not fit."""

    pattern: str
    node: Node
    reason: str
    matched: int
    """Operators that fitted before that: the mismatch with the most is the near miss worth showing."""
