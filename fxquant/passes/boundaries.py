"""Leaves matches in float where int8 would cost a rounding and save nothing, and so says where int8 begins and ends."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from torch import nn
from torch.fx import Node

from fxquant.backends.base import AsCalled, Backend, BreakEven
from fxquant.graph.macs import CONVOLUTIONS, TRANSPOSED, multiply_accumulates
from fxquant.graph.query import module_of, operator_name, value_of
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

IN_FLOAT_AS_WELL = frozenset(pattern.name for pattern in ELEMENTWISE)
"""Names of patterns that take about as long on float values: sums, products, joins."""


class Boundaries:
    """Decides which matches of a graph become units, and which of these units give float values.

    A match that multiplies and accumulates (a convolution) becomes a unit, and so does a user's handler. The rest of
    this class is about the other matches, and about layers that are too small.

    Another match becomes a unit only if its quantized result is read by such a unit, or by a result of the model that
    the user asked to round, directly or through other such matches. A match that takes float values becomes one only
    if every reader takes integers.

    A bounded function (sigmoid) reads its input in float unless a unit computes that input: the range of another value
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
        self._found = {node: found for found in matches for node in found.nodes}
        self._quantized: set[Node] = set()  # roots
        self._in_parts: dict[Node, str] = {}  # root -> reason
        computed = self._holding_computed_values()
        self._on_floats = {
            found.nodes[-1] for found in matches if self._may_read_floats(found) and self._source(found) not in computed
        }
        self._slower: dict[Node, str] = {}  # root -> reason
        self._choose(computed)
        if backend.break_even is not None:
            lone = (found for found in matches if self._stands_alone(found) and not asked_for(found))
            slower = slower_alone(lone, backend.break_even)
            if any(_is_layer(found) and found.nodes[-1] not in slower for found in matches):
                self._slower = slower
                self._choose(computed)

    def left_in_float(self) -> dict[Node, tuple[str, str]]:
        """Nodes that should not become units -> name of the pattern, and why not.

        Of a layer all nodes are named, since each of them is then an operator of its own; of another match, the root.
        """
        left: dict[Node, tuple[str, str]] = {}
        for found in self._matches:
            if (root := found.nodes[-1]) not in self._quantized:
                nodes = found.nodes if root in self._slower else (root,)
                left |= dict.fromkeys(nodes, (found.pattern.name, self._slower.get(root) or self._reason(root)))
        return left

    def without_float_inputs(self, found: Match) -> Match:
        """Return the match, without inputs where it is a bounded function of a value that is float anyway."""
        if not self._may_read_floats(found):
            return found
        source = self._found.get(found.captures[found.inputs[0]])
        made = source is not None and source.nodes[-1] in self._quantized and source.pattern.can_give_integers
        return found if made else replace(found, inputs=())

    def is_float_output(self, found: Match) -> bool:
        """Tell whether only float operators read the result, which the back end can make of its accumulators."""
        if not found.pattern.can_give_integers:
            return True
        rule = self._backend.rule_for(found.pattern)
        readers = readers_of(found.nodes[-1])
        if not found.pattern.multiplies or rule is None or not rule.float_result or not readers:
            return False
        rounded = self._rounds_model_output(found)
        return not any(rounded if reader.op == "output" else self._takes_integers(reader) for reader in readers)

    def _choose(self, computed: set[Node]) -> None:
        self._in_parts, self._quantized = {}, set()
        while in_parts := self._keep_what_is_worth_it(computed):  # what reads these may have no reason any more
            self._in_parts |= in_parts
            self._quantized.clear()

    def _keep_what_is_worth_it(self, computed: set[Node]) -> dict[Node, str]:
        """Return the answer: roots of matches that should rather stay float, since they are read in parts, and why."""
        elements, in_parts = ElementsRead(self._found, self._takes_integers_of), dict[Node, str]()
        for found in self._matches:  # readers come before what they read
            root = found.nodes[-1]
            if root in self._in_parts or root in self._slower or not self._is_worth_it(found, computed):
                continue
            if found.inputs and found.pattern.name in IN_FLOAT_AS_WELL and elements.some_only_as_floats(root):
                in_parts |= {root: IN_PARTS, **self._parts(root, elements)}
            else:
                self._keep(found)
        return in_parts

    def _parts(self, node: Node, elements: ElementsRead) -> dict[Node, str]:
        """The slices, and what else leads to them, through which parts of a value that stays float become integers."""
        found: dict[Node, str] = {}
        for reader in filter(self._takes_integers, readers_of(node)):
            match = self._found[reader]
            root = match.nodes[-1]
            in_part = value_of(node) is None or elements.is_read_in_part(reader, node)
            if in_part and (_keeps_values(match) or match.pattern.name in IN_FLOAT_AS_WELL):
                found |= {root: PART, **self._parts(root, elements)}
        return found

    def _stands_alone(self, found: Match) -> bool:
        """Tell whether it reads float, but for values that are only moved on their way, and gives float likewise."""
        return (
            _is_layer(found)
            and self.is_float_output(found)
            and not any(self._is_computed_in_integers(found.captures[name]) for name in found.inputs)
        )

    def _is_computed_in_integers(self, value: Node) -> bool:
        found = self._found.get(value)
        if found is None or found.nodes[-1] not in self._quantized or not found.pattern.can_give_integers:
            return False
        moves = _keeps_values(found) and len(found.inputs) == 1
        return not moves or self._is_computed_in_integers(found.captures[found.inputs[0]])

    def _holding_computed_values(self) -> set[Node]:
        """Roots of the matches behind which at least one operator computes, and does not only move, what they hold."""
        computed: set[Node] = set()
        for found in reversed(self._matches):
            sources = [self._found.get(found.captures[name]) for name in found.inputs[:1]]
            if _keeps_values(found):
                holds = any(source and source.nodes[-1] in computed for source in sources)
            else:
                holds = found.pattern.can_give_integers
            if holds:
                computed.add(found.nodes[-1])
        return computed

    def _may_read_floats(self, found: Match) -> bool:
        """Tell whether it is a bounded function that the back end has a module for that takes float values."""
        if not isinstance(found.pattern.output, Bounded) or len(found.inputs) != 1:
            return False
        rule = self._backend.rule_for(found.pattern)
        return rule is not None and isinstance(rule.build, AsCalled)

    def _source(self, found: Match) -> Node | None:
        """Root of the match that makes the first input, if one does."""
        source = self._found.get(found.captures[found.inputs[0]])
        return None if source is None else source.nodes[-1]

    def _is_worth_it(self, found: Match, computed: set[Node]) -> bool:
        if found.pattern.multiplies or found.pattern.handler is not None:
            return True
        root = found.nodes[-1]
        if not found.inputs:  # the float result is there, and better
            return bool(readers_of(root)) and all(self._takes_integers(reader) for reader in readers_of(root))
        returned = root in computed and self._rounds_model_output(found)
        return any(returned if reader.op == "output" else self._takes_integers(reader) for reader in readers_of(root))

    def _takes_integers(self, reader: Node) -> bool:
        found = self._found.get(reader)
        if found is None or found.nodes[-1] not in self._quantized or reader in self._on_floats:
            return False
        return bool(found.inputs) or found.pattern.handler is not None  # others are called with float values

    def _takes_integers_of(self, node: Node, reader: Node) -> bool:
        """Return the same, but for what the model gives out and is asked to round."""
        return self._rounds_model_output(self._found[node]) if reader.op == "output" else self._takes_integers(reader)

    def _keep(self, found: Match) -> None:
        """A tuple of quantized tensors cannot be dequantized as one, so all matches that read it become units, too."""
        root = found.nodes[-1]
        self._quantized.add(root)
        if value_of(root) is None and found.pattern.can_give_integers:
            for reader in root.users:
                if reader in self._found and not self._takes_integers(reader):
                    self._keep(self._found[reader])

    def _reason(self, root: Node) -> str:
        readers = readers_of(root)
        if not readers:
            return UNREAD
        has_float_values = not self._found[root].inputs
        if has_float_values and any(self._takes_integers(reader) for reader in readers):
            return READ_AS_FLOAT
        in_part = self._in_parts.get(root)
        if in_part == IN_PARTS or (in_part and any(self._takes_integers(reader) for reader in readers)):
            return in_part
        if any(reader.op == "output" for reader in readers):
            if has_float_values:
                return RETURNED_UNROUNDED
            return ISOLATED if self._rounds_model_output(self._found[root]) else RETURNED
        names = ", ".join(dict.fromkeys(operator_name(reader) for reader in readers))
        return f"only float operators read it ({names})"


def _is_layer(found: Match) -> bool:
    """Tell whether it multiplies quantized values, or may."""
    return found.pattern.handler is not None or (found.pattern.multiplies and bool(found.inputs))


def _keeps_values(found: Match) -> bool:
    return found.pattern.output in (Output.PICKED, Output.CLAMPED)


LAYERS = (nn.Linear, *CONVOLUTIONS, *TRANSPOSED)

ONE_ROW = "slower in int8 alone: {:,} products on one row, and a call pays from {:,} on"
FEW_PER_VALUE = "slower in int8 alone: {:.1f} products for each value that it reads or gives, and {:g} pay"


def slower_alone(layers: Iterable[Match], limits: BreakEven) -> dict[Node, str]:
    """Find, of layers that read floats and give floats, those that are slower in int8: root -> the reason.

    Their sizes are those on the example inputs.
    """
    return {found.nodes[-1]: reason for found in layers if (reason := _why_slower(found, limits))}


def _why_slower(found: Match, limits: BreakEven) -> str:
    layer = next((node for node in found.nodes if isinstance(module_of(node), LAYERS)), None)
    result = None if layer is None else value_of(layer)
    if layer is None or result is None or not result.has_shape or found.pattern.handler is not None:
        return ""  # nobody knows how much it multiplies
    products = multiply_accumulates(layer)
    ends = (*(found.captures[name] for name in found.inputs), found.nodes[-1])
    values = [value_of(node) for node in ends]
    moved = sum(math.prod(value.shape) for value in values if value is not None)
    has_one_row = isinstance(module_of(layer), nn.Linear) and math.prod(result.shape[:-1]) == 1
    if has_one_row and products < limits.of_one_row:
        return ONE_ROW.format(products, limits.of_one_row)
    pays = _products_that_pay(module_of(layer), limits)
    if moved >= limits.values and products < moved * pays:
        return FEW_PER_VALUE.format(products / moved, pays)
    return ""


def _products_that_pay(layer: nn.Module | None, limits: BreakEven) -> float:
    """Return how many products for each value make a layer of this kind faster in int8."""
    if isinstance(layer, nn.Linear):
        return limits.of_linear
    is_depthwise = getattr(layer, "groups", 1) == getattr(layer, "in_channels", 0) > 1
    return limits.of_convolution if isinstance(layer, CONVOLUTIONS) and not is_depthwise else 0.0
