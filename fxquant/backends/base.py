"""A back end says what a target can run, as a table: which patterns, with which qparams, and how each is built."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor, nn
from torch.fx import Node

from fxquant.errors import SpecError, UnknownNameError
from fxquant.graph.decompositions.composites import Composite
from fxquant.patterns.pattern import Build, Pattern
from fxquant.plan.precision import Choice, Cost, UnitWork, nominal_cost
from fxquant.plan.spec import QScheme
from fxquant.registry import Registry


class Lower(enum.Enum):
    """Ways to lower that need no module."""

    KEEP = "the float operator itself, run on quantized values: it only moves them"
    ELIDE = "nothing: the value passes through"


@dataclass(frozen=True, slots=True)
class KeepAs:
    """The float operator's call with another function, which does the same to quantized values: it only moves them."""

    function: Callable[..., Tensor]


@dataclass(frozen=True, slots=True)
class AsCalled:
    """A module that takes the float module's place, and is called with the same arguments: none need be quantized."""

    build: Build
    accepts_quantized: bool = False
    """True: if the first argument comes from a unit, the module is called with its quantized value, and ``build`` finds
    its qparams under ``x``."""


Accepts = Callable[[QScheme], str | None]
"""Answers None, or why the scheme cannot be stored or computed with."""


Fits = Callable[[nn.Module], str | None]
"""Answers None, or why the layer that holds the weight cannot be run."""


Where = Callable[[Mapping[str, Node]], str | None]
"""Answers None, or why the operators that a pattern captured cannot be run where they stand in the graph."""


def anything(thing: object) -> str | None:
    """Accept everything."""
    return None


@dataclass(frozen=True, slots=True)
class LoweringRule:
    """Says how a back end runs some patterns."""

    patterns: tuple[str, ...]
    build: Build | Lower | KeepAs | AsCalled
    activation: Accepts = anything
    weight: Accepts = anything
    layer: Fits = anything
    where: Where = anything
    takes: tuple[int, ...] = ()
    """Positions of arguments of the root that may be computed at run time: the module is called with them then."""
    float_result: bool = False
    """True: ``build`` can do without qparams of ``"y"``; the result is then float values, not rounded."""


@dataclass(frozen=True, slots=True)
class BreakEven:
    """A layer with a weight that multiplies less than this is slower in int8, where all around it is float.

    Its input is then quantized for it alone.
    """

    of_one_row: int
    """Multiply-accumulates of a linear layer on one row: with fewer, a call costs more than they save."""
    of_linear: float
    """Multiply-accumulates of a linear layer for each value of its input and of its result: with fewer, memory is the
    limit."""
    of_convolution: float
    """The same of a convolution, whose values are also put into another order in memory. Depthwise and transposed
    convolutions have no limit: they are slower in float."""
    values: int
    """Size of input and result together from which ``of_linear`` and ``of_convolution`` count, beside ``of_one_row``:
    fewer values stay in the cache."""


@dataclass(frozen=True, slots=True)
class Backend:
    """A named table of rules."""

    name: str
    rules: tuple[LoweringRule, ...]
    otherwise: LoweringRule | None = None
    """For patterns that no rule names."""
    has_operators: bool = True
    """False: there is nothing to convert to int8 with; the other forms are what it is for."""
    break_even: BreakEven | None = None
    """None: a layer is worth its boundaries however small it is."""
    bias: Literal["float32", "int32"] = "float32"
    """"int32": biases are whole multiples of the scale of the products that they are added to, in every form."""
    joins_on_one_qparams: bool = False
    """True: what is joined has the qparams of the result, however unequal the ranges are."""
    composites: Mapping[Any, Composite] = field(default_factory=dict)
    """Canonical target -> the rule that takes it apart, for operators that run in float there while their parts do
    not."""
    cost: Callable[[UnitWork, Choice], Cost] = nominal_cost
    """What a unit costs there with some bits, latency aside: for ``search_precision``."""

    def rule_for(self, pattern: Pattern) -> LoweringRule | None:
        """Return the rule for a pattern: its own for this back end, else the table's, else ``otherwise``."""
        if self.name in pattern.lower:
            return LoweringRule((pattern.name,), pattern.lower[self.name])
        return next((rule for rule in self.rules if pattern.name in rule.patterns), self.otherwise)


BACKENDS: Registry[Backend] = Registry("backend")


SIGNED_WEIGHTS = "weights must be signed and symmetric"
"""What a reason begins with, where qparams of weights are refused because they are not so."""

TORCH_ENGINES = ("x86", "fbgemm", "onednn", "qnnpack")
"""What torch.ao calls its back ends."""


def backend_of(name: str) -> Backend:
    """Return the back end of that name.

    Raises:
        UnknownNameError: there is none.
    """
    if isinstance(name, Backend):
        raise UnknownNameError(
            "a back end is given by its name",
            got=f"the Backend {name.name!r}",
            expected=", ".join(BACKENDS),
            hint=f"fxq.register_backend(...) makes it known once, then backend={name.name!r}",
        )
    if name in BACKENDS or name not in TORCH_ENGINES:
        return BACKENDS[name]
    raise UnknownNameError(
        "unknown backend",
        got=repr(name),
        expected=", ".join(BACKENDS),
        hint="backend='cpu', the default, is for every CPU: instruction sets are chosen at run time",
    )


def register_backend(backend: Backend) -> Backend:
    """Make a back end known by its name, for ``prepare(..., backend=name)``.

    Raises:
        DuplicateNameError: there is one of that name already.
        SpecError: it is no Backend.
    """
    if not isinstance(backend, Backend):
        raise SpecError("a back end is a Backend", got=repr(backend), expected="Backend(name, rules=(...))")
    BACKENDS.add(backend.name, backend)
    return backend
