"""Follows channels through a graph: which values have them along which dimension, which layers make and read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.fx import GraphModule, Node

from fxquant.equalization.channels import Channels, Ids
from fxquant.graph.query import has_hooks, module_of, operator_name, value_of


@dataclass(frozen=True, slots=True)
class Tracked:
    """The channels of a value that may be scaled."""

    axis: int
    """Dimension that counts them, from the end: -1 is the last."""
    ids: Ids

    @property
    def axes(self) -> tuple[int, ...]:
        """Return the dimension, as ``Spread`` has several."""
        return (self.axis,)


@dataclass(frozen=True, slots=True)
class Spread:
    """The channels of a value that lie along several dimensions, as heads have them."""

    axes: tuple[int, ...]
    """Dimensions from the end, in order."""
    sizes: tuple[int, ...]
    """Of each of them."""
    ids: Ids
    """In row-major order."""


Part = Tracked | Spread | None

Result = Part | tuple[Part, ...] | str
"""Channels of the value or values of an operator; None: nothing that it reads can be scaled, so its value cannot; a
text says why no factor passes."""

Rule = Callable[["Tracker", Node], Result]


@dataclass(frozen=True, slots=True)
class LayerEnd:
    """One dimension of the parameters of a layer."""

    path: str
    kind: Any
    ids: Ids
    behind: str = ""


@dataclass(frozen=True, slots=True)
class Clamped:
    """A value that a clamp reads, whose bounds do not move."""

    node: Node
    tracked: Tracked
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Summed:
    """A matrix product that sums over channels of both operands, head by head: a factor of one undoes the other's."""

    node: Node
    left: Ids
    right: Ids
    """In the order of ``left``."""


class Tracker:
    """Holds what is known of the channels of each value.

    Args:
        gm: A prepared float graph.
        numbers: Name of a node -> its value on the example, where that is a number or several.
        with_data: Whether there is data that tells how near values come to the bounds of clamps.
    """

    def __init__(self, gm: GraphModule, numbers: Mapping[str, Any], with_data: bool) -> None:
        self.gm, self.numbers, self.with_data = gm, numbers, with_data
        self.channels = Channels()
        self.values: dict[Node, Part | tuple[Part, ...]] = {}
        self.ends: dict[tuple[str, str], LayerEnd] = {}
        self.clamps: list[Clamped] = []
        self.sums: list[Summed] = []
        self.folded: set[str] = set()
        """Layers that only batch norms read, which scale in their place."""
        self._reasons: dict[Node, str] = {}
        self._of_parameter: dict[int, Ids] = {}
        self._elsewhere: list[tuple[int, str]] = []
        """Parameters that something reads which is no layer, and what."""

    def of(self, argument: Any) -> Tracked | None:
        """Return the channels of one tensor; None if it cannot be scaled.

        Channels along several dimensions keep their scale then: who takes those asks ``spread_of``.
        """
        found = self.spread_of(argument)
        if isinstance(found, Spread):
            self._reasons[argument] = f"the channels of {argument.name} lie along several dimensions"
            self.channels.fix(found.ids, self._reasons[argument])
            return None
        return found

    def spread_of(self, argument: Any) -> Part:
        """Return the channels of one tensor, along however many dimensions."""
        found = self.values.get(argument) if isinstance(argument, Node) else None
        return found if isinstance(found, (Tracked, Spread)) else None

    def run(self, rule_of: Callable[[Node], Rule | None]) -> None:
        """Follow the channels through all nodes, in order."""
        for node in self.gm.graph.nodes:
            if node.op == "get_attr" and node.users:
                self._elsewhere.append((id(_attribute(self.gm, str(node.target))), f"{node.name} reads the parameter"))
            rule = rule_of(node)
            self._note(node, self._refused(node) if rule is None else rule(self, node))
        for parameter, reason in self._elsewhere:
            self.channels.fix(self._of_parameter.get(parameter, ()), reason)

    def parameter(self, tensor: Tensor | None, count: int) -> Ids:
        """Return the channels of a parameter: the same in all layers that have it, new ones for none."""
        if tensor is None:
            return self.channels.new(count)
        return self._of_parameter.setdefault(id(tensor), self.channels.new(count))

    def same(self, parameter: Tensor | None, ids: Ids) -> None:
        """Let the channels of a parameter, such as a bias, be these."""
        if parameter is not None:
            self.channels.join(self._of_parameter.setdefault(id(parameter), ids), ids)

    def end(self, node: Node, kind: str, ids: Ids, behind: str = "") -> None:
        """Note that a layer can be scaled along ``ids``."""
        self.ends.setdefault((str(node.target), kind), LayerEnd(str(node.target), kind, ids, behind))

    def read(self, node: Node, ids: Ids, axis: int) -> None:
        """Let a layer read its first argument, along a dimension."""
        source = node.args[0]
        tracked = self.of(source)
        if tracked is None:
            self.channels.fix(ids, self.reason(source))
        elif (tracked.axis, len(tracked.ids)) != (axis, len(ids)):
            reason = f"{node.name} multiplies along another dimension than the channels"
            self.channels.fix((*tracked.ids, *ids), reason)
        else:
            self.channels.join(tracked.ids, ids)

    def sum(self, node: Node, left: Ids, right: Ids) -> None:
        """Note that a matrix product sums over channels of both factors, ``right`` in the order of ``left``."""
        self.sums.append(Summed(node, left, right))
        self._reasons[node] = f"{node.name} sums over its channels"

    def reason(self, argument: Any) -> str:
        """Return why a value cannot be scaled."""
        if not isinstance(argument, Node):
            return "it is a constant"
        return self._reasons.get(argument, f"no factor passes through {argument.name}")

    def _note(self, node: Node, result: Result) -> None:
        if isinstance(result, str):
            for source in node.all_input_nodes:
                for tracked in _each(self.values.get(source)):
                    self.channels.fix(tracked.ids, result)
            self._reasons[node], result = result, None
        elif result is None and node not in self._reasons:
            known = (self._reasons[source] for source in node.all_input_nodes if source in self._reasons)
            self._reasons[node] = next(known, "")
        self.values[node] = result

    def _refused(self, node: Node) -> str:
        """Say why no factor passes through a node that no rule is about."""
        if node.op == "placeholder":
            self._reasons[node] = "it is an input of the model"
            return self._reasons[node]
        if node.op == "output":
            return "it is an output of the model"
        module = module_of(node)
        if module is not None:
            name = type(module).__name__
            self._elsewhere += [
                (id(parameter), f"{node.name} ({name}) has its weight") for parameter in module.parameters()
            ]
            hooked = " has hooks" if has_hooks(module) else ""
            return f"no factor passes through {node.name} ({name}{hooked})"
        if node.op == "get_attr":
            return f"{node.name} is a constant"
        return f"no factor passes through {node.name} ({operator_name(node)})"


def shape_of(node: Node) -> tuple[int, ...] | None:
    """Return the shape of a value on the example; None where that is no tensor or not known."""
    info = value_of(node)
    return info.shape if info is not None and info.has_shape else None


def _each(value: Part | tuple[Part, ...]) -> Sequence[Tracked | Spread]:
    if isinstance(value, tuple):
        return [item for item in value if item is not None]
    return [] if value is None else [value]


def _attribute(gm: GraphModule, path: str) -> Any:
    parent, _, name = path.rpartition(".")
    return getattr(gm.get_submodule(parent), name, None)
