"""Leaves matches in float where int8 would cost a rounding and save nothing, and so says where int8 begins and ends."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from torch import nn
from torch.fx import Node

from fxquant.backends.base import AsCalled, Backend, BreakEven
from fxquant.graph.macs import CONVOLUTIONS, TRANSPOSED, multiply_accumulates
from fxquant.graph.query import is_one_tensor, module_of, operator_name, value_of
from fxquant.passes.elements import ElementsRead, readers_of
from fxquant.patterns.elementwise import ELEMENTWISE
from fxquant.patterns.pattern import Bounded, Match, Output

ISOLATED = "neither what makes its input nor what reads its output is quantized"
UNREAD = "nothing reads its output"
READ_AS_FLOAT = "not all of what reads it takes integers, and it has float values to give"
RETURNED_UNROUNDED = "the model gives it out, and it has float values to give"
RETURNED = "the model returns it as float, so nothing is gained by rounding it; QConfig(output=...) would"
IN_PARTS = "float operators read elements of it that nothing reads as integers"
PART = "only a part is read as integers of what it reads, which stays float; what reads the part rounds it"

AS_FAST_IN_FLOAT = frozenset(pattern.name for pattern in ELEMENTWISE)
"""Names of patterns that are as fast on float values: sums, products, joins."""


class UnitChoice:
    """Decides which matches of a graph become units, and which of these units give float values.

    A user's handler always becomes a unit. So does a match that multiplies and accumulates (a convolution), unless it
    is too small (below). The rest of this class is about the other matches, and about layers that are too small.

    Another match becomes a unit if its quantized result reaches such a unit, or a result of the model that the user
    asked to round, directly or through other matches. A match that takes float values becomes a unit only if every
    reader takes integers.

    A bounded function (sigmoid, tanh, softmax: ``Pattern.output`` is ``Bounded``) reads its
    input in float unless a unit computes that input: the range of another value
    ends where calibration saw it end, and the function has an answer for what lies beyond.

    A sum or a join of which integers need only a part (a slice), while float operators read the rest, stays float, and
    the part is rounded by itself: a class token beside others that are far larger, say.

    A layer that reads floats and gives floats pays for its boundaries alone. Where it multiplies too little for that,
    by the back end's ``break_even``, it is left in float, unless the user asked for it, or no other layer were left.

    Args:
        matches: From the output of the model backwards, as the annotate pass finds them.
        backend: Has the rules of these.
        rounds_model_output: Whether the configuration of a match says how to observe what the model returns.
        asked_for: Whether a rule other than the global one applies to the match.
    """

    def __init__(
        self,
        matches: Sequence[Match],
        backend: Backend,
        rounds_model_output: Callable[[Match], bool],
        asked_for: Callable[[Match], bool],
    ) -> None:
        self._matches = matches
        self._backend = backend
        self._rounds_model_output = rounds_model_output
        self._match_of = {node: match for match in matches for node in match.nodes}
        self._quantized: set[Node] = set()  # roots
        self._in_parts: dict[Node, str] = {}  # root -> reason
        computed_by_units = self._computed_by_units()
        self._bounded_reading_floats = {
            match.nodes[-1]
            for match in matches
            if self._may_read_floats(match) and self._source(match) not in computed_by_units
        }
        """Roots of bounded functions that take float values, since no unit computes their input."""
        self._slower: dict[Node, str] = {}  # root -> reason
        self._choose(computed_by_units)
        if backend.break_even is not None:
            lone = (match for match in matches if self._stands_alone(match) and not asked_for(match))
            slower = slower_alone(lone, backend.break_even)
            if any(_may_multiply_integers(match) and match.nodes[-1] not in slower for match in matches):
                self._slower = slower
                self._choose(computed_by_units)

    def left_in_float(self) -> dict[Node, tuple[str, str]]:
        """Nodes that should not become units -> name of the pattern, and why not.

        Of a layer all nodes are named, since each of them is then an operator of its own; of another match, the root.
        """
        left: dict[Node, tuple[str, str]] = {}
        for match in self._matches:
            if (root := match.nodes[-1]) not in self._quantized:
                nodes = match.nodes if root in self._slower else (root,)
                left |= dict.fromkeys(nodes, (match.pattern.name, self._slower.get(root) or self._reason(root)))
        return left

    def without_float_inputs(self, match: Match) -> Match:
        """Return the match, without inputs where it is a bounded function of a value that is float anyway."""
        if not self._may_read_floats(match):
            return match
        source = self._match_of.get(match.captures[match.inputs[0]])
        from_unit = source is not None and source.nodes[-1] in self._quantized and source.pattern.can_give_integers
        return match if from_unit else replace(match, inputs=())

    def gives_float_result(self, match: Match) -> bool:
        """Tell whether only float operators read the result, and the back end can give floats from its accumulators."""
        if not match.pattern.can_give_integers:
            return True
        rule = self._backend.rule_for(match.pattern)
        readers = readers_of(match.nodes[-1])  # all but questions for the shape
        if not match.pattern.multiplies or rule is None or not rule.float_result or not readers:
            return False
        rounded = self._rounds_model_output(match)
        return not any(rounded if reader.op == "output" else self._takes_integers(reader) for reader in readers)

    def _choose(self, computed_by_units: set[Node]) -> None:
        self._in_parts, self._quantized = {}, set()
        while in_parts := self._make_units(computed_by_units):  # what reads these may have no reason any more
            self._in_parts |= in_parts
            self._quantized.clear()

    def _make_units(self, computed_by_units: set[Node]) -> dict[Node, str]:
        """Make units of the matches that are worth it.

        Return those that should stay float after all, since they are read in parts: root -> reason.
        """
        # Which elements of a value are read as integers, and which as floats.
        elements, in_parts = ElementsRead(self._match_of, self._takes_integers_of), dict[Node, str]()
        for match in self._matches:  # readers come before what they read
            root = match.nodes[-1]
            if root in self._in_parts or root in self._slower or not self._is_worth_it(match, computed_by_units):
                continue
            if match.inputs and match.pattern.name in AS_FAST_IN_FLOAT and elements.some_only_as_floats(root):
                in_parts |= {root: IN_PARTS, **self._parts(root, elements)}
            else:
                self._add_unit(match)
        return in_parts

    def _parts(self, node: Node, elements: ElementsRead) -> dict[Node, str]:
        """Name the slices through which parts of a value that stays float become integers, and what leads to them."""
        reasons: dict[Node, str] = {}
        for reader in filter(self._takes_integers, readers_of(node)):
            match = self._match_of[reader]
            root = match.nodes[-1]
            in_part = not is_one_tensor(node) or elements.is_read_in_part(reader, node)
            if in_part and (_keeps_values(match) or match.pattern.name in AS_FAST_IN_FLOAT):
                reasons |= {root: PART, **self._parts(root, elements)}
        return reasons

    def _stands_alone(self, match: Match) -> bool:
        """Tell whether it reads float values, perhaps moved on the way, and gives float values."""
        return (
            _may_multiply_integers(match)
            and self.gives_float_result(match)
            and not any(self._is_computed_in_integers(match.captures[name]) for name in match.inputs)
        )

    def _is_computed_in_integers(self, value: Node) -> bool:
        match = self._match_of.get(value)
        if match is None or match.nodes[-1] not in self._quantized or not match.pattern.can_give_integers:
            return False
        only_moves = _keeps_values(match) and len(match.inputs) == 1
        return not only_moves or self._is_computed_in_integers(match.captures[match.inputs[0]])

    def _computed_by_units(self) -> set[Node]:
        """Return the roots of matches whose values a unit computes, even where they were moved or clamped since."""
        computed_by_units: set[Node] = set()
        for match in reversed(self._matches):
            sources = [self._match_of.get(match.captures[name]) for name in match.inputs[:1]]
            if _keeps_values(match):
                holds = any(source and source.nodes[-1] in computed_by_units for source in sources)
            else:
                holds = match.pattern.can_give_integers
            if holds:
                computed_by_units.add(match.nodes[-1])
        return computed_by_units

    def _may_read_floats(self, match: Match) -> bool:
        """Tell whether it is a bounded function that the back end has a module for that takes float values."""
        if not isinstance(match.pattern.output, Bounded) or len(match.inputs) != 1:
            return False
        rule = self._backend.rule_for(match.pattern)
        return rule is not None and isinstance(rule.build, AsCalled)

    def _source(self, match: Match) -> Node | None:
        """Return the root of the match that makes the first input, if one does."""
        source = self._match_of.get(match.captures[match.inputs[0]])
        return None if source is None else source.nodes[-1]

    def _is_worth_it(self, match: Match, computed_by_units: set[Node]) -> bool:
        if match.pattern.multiplies or match.pattern.handler is not None:
            return True
        root = match.nodes[-1]
        if not match.inputs:  # the float result is there, and better
            return bool(readers_of(root)) and all(self._takes_integers(reader) for reader in readers_of(root))
        returned = root in computed_by_units and self._rounds_model_output(match)
        return any(returned if reader.op == "output" else self._takes_integers(reader) for reader in readers_of(root))

    def _takes_integers(self, reader: Node) -> bool:
        match = self._match_of.get(reader)
        if match is None or match.nodes[-1] not in self._quantized or reader in self._bounded_reading_floats:
            return False
        return bool(match.inputs) or match.pattern.handler is not None  # others are called with float values

    def _takes_integers_of(self, node: Node, reader: Node) -> bool:
        """Return the same, but for what the model gives out and is asked to round."""
        return (
            self._rounds_model_output(self._match_of[node]) if reader.op == "output" else self._takes_integers(reader)
        )

    def _add_unit(self, match: Match) -> None:
        """Make a match a unit.

        A tuple of quantized tensors cannot be dequantized as one, so all matches that read it become units, too.
        """
        root = match.nodes[-1]
        self._quantized.add(root)
        if not is_one_tensor(root) and match.pattern.can_give_integers:
            for reader in root.users:
                if reader in self._match_of and not self._takes_integers(reader):
                    self._add_unit(self._match_of[reader])

    def _reason(self, root: Node) -> str:
        readers = readers_of(root)
        if not readers:
            return UNREAD
        has_float_values = not self._match_of[root].inputs
        if has_float_values and any(self._takes_integers(reader) for reader in readers):
            return READ_AS_FLOAT
        in_part = self._in_parts.get(root)
        if in_part == IN_PARTS or (in_part and any(self._takes_integers(reader) for reader in readers)):
            return in_part
        if any(reader.op == "output" for reader in readers):
            if has_float_values:
                return RETURNED_UNROUNDED
            return ISOLATED if self._rounds_model_output(self._match_of[root]) else RETURNED
        names = ", ".join(dict.fromkeys(operator_name(reader) for reader in readers))
        return f"only float operators read it ({names})"


def _may_multiply_integers(match: Match) -> bool:
    """Tell whether it multiplies quantized values, or may."""
    return match.pattern.handler is not None or (match.pattern.multiplies and bool(match.inputs))


def _keeps_values(match: Match) -> bool:
    """Tell whether each value of the result is one of the input, moved or clamped."""
    return match.pattern.output in (Output.PICKED, Output.CLAMPED)


LAYERS = (nn.Linear, *CONVOLUTIONS, *TRANSPOSED)

ONE_ROW = "slower in int8 alone: {:,} products on one row, and a call pays from {:,} on"
FEW_PER_VALUE = "slower in int8 alone: {:.1f} products for each value that it reads or gives, and {:g} pay"


def slower_alone(layers: Iterable[Match], limits: BreakEven) -> dict[Node, str]:
    """Find, of layers that read floats and give floats, those that are slower in int8: root -> the reason.

    Their sizes are those on the example inputs.
    """
    return {match.nodes[-1]: reason for match in layers if (reason := _why_slower(match, limits))}


def _why_slower(match: Match, limits: BreakEven) -> str:
    layer = next((node for node in match.nodes if isinstance(module_of(node), LAYERS)), None)
    result = None if layer is None else value_of(layer)
    if layer is None or result is None or not result.has_shape or match.pattern.handler is not None:
        return ""  # nobody knows how much it multiplies
    products = multiply_accumulates(layer)
    read_and_given = (*(match.captures[name] for name in match.inputs), match.nodes[-1])
    values = [value_of(node) for node in read_and_given]
    traffic = sum(math.prod(value.shape) for value in values if value is not None)  # values in memory
    has_one_row = isinstance(module_of(layer), nn.Linear) and math.prod(result.shape[:-1]) == 1
    if has_one_row and products < limits.of_one_row:
        return ONE_ROW.format(products, limits.of_one_row)
    pays = _products_that_pay(module_of(layer), limits)
    if traffic >= limits.values and products < traffic * pays:
        return FEW_PER_VALUE.format(products / traffic, pays)
    return ""


def _products_that_pay(layer: nn.Module | None, limits: BreakEven) -> float:
    """Return how many products for each value make a layer of this kind faster in int8."""
    if isinstance(layer, nn.Linear):
        return limits.of_linear
    is_depthwise = getattr(layer, "groups", 1) == getattr(layer, "in_channels", 0) > 1
    return limits.of_convolution if isinstance(layer, CONVOLUTIONS) and not is_depthwise else 0.0
