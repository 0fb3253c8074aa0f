"""Measures the parts that concatenations and stacks join, and by how much their ranges differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch.fx import GraphModule, Node

from fxquant.fake_quantize.base import FakeQuantizeBase
from fxquant.graph.query import module_of, module_path
from fxquant.nn.training import JoinedRange

UNEQUAL = 8.0
"""How many times as wide the widest part of a join may be as the narrowest: beyond, three bits of that one are lost."""


@dataclass(frozen=True, slots=True)
class Part:
    """One of the values that a join takes."""

    name: str
    """Path of the module that makes it, or the name of the value."""
    low: float
    high: float
    """Smallest and largest float value."""

    @property
    def width(self) -> float:
        """Return the width of the range with 0 in it; 0 or less if nothing was seen."""
        return max(self.high, 0.0) - min(self.low, 0.0) if self.low <= self.high else 0.0


def inequality(parts: Sequence[Part]) -> float:
    """Return how many times as wide the widest part is as the narrowest. Parts that are 0 throughout do not count."""
    widths = [part.width for part in parts if part.width > 0]
    return max(widths) / min(widths) if widths else 1.0


def unequal(parts: Sequence[Part]) -> str:
    """Describe parts that differ too much for one range of 8 bits, in one line; empty if they do not."""
    seen = [part for part in parts if part.width > 0]
    if inequality(seen) <= UNEQUAL:
        return ""
    narrow, wide = min(seen, key=lambda part: part.width), max(seen, key=lambda part: part.width)
    return f"{narrow.name} spans {narrow.width:.3g}, {wide.name} {wide.width:.3g}, {inequality(seen):.3g} times as much"


def part_name(node: Node) -> str:
    """Return the name by which a user knows a value that is joined."""
    path, called = module_path(node)
    return path if called is not None else node.name


def parts_in_training(gm: GraphModule) -> dict[str, list[Part]]:
    """Return what each join of a model that trains takes, by the name of the join."""
    found: dict[str, list[Part]] = {}
    for node in gm.graph.nodes:
        watched = [(value, module_of(value)) for value in node.all_input_nodes]
        parts = [
            Part(part_name(_unrounded(value)), *module.ends.tolist())
            for value, module in watched
            if isinstance(module, JoinedRange)
        ]
        if parts:
            found[node.name] = parts
    return found


def _unrounded(value: Node) -> Node:
    """Return the node of an observed value before it is rounded."""
    while isinstance(module_of(value), (JoinedRange, FakeQuantizeBase)):
        (value,) = value.all_input_nodes[:1]
    return value
