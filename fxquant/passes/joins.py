"""What concatenations and stacks join, and what else reads it. Shared by the passes that let grids meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch.fx import GraphModule, Node

from fxquant.graph.query import is_shape_query, nodes_by_name
from fxquant.passes.base import PassContext
from fxquant.patterns.pattern import Output
from fxquant.plan.quant_plan import QuantUnit
from fxquant.plan.spec import TensorRef


@dataclass(frozen=True, slots=True)
class Readers:
    """What reads the values on one grid."""

    joins: tuple[str, ...]
    """Roots of the joins among them, in the order of the graph."""
    others: bool
    """Whether anything else does: another operator, or whoever called the model."""


def joins_of(ctx: PassContext) -> tuple[QuantUnit, ...]:
    """The units of a plan that put several values on one grid, in the order of the graph."""
    patterns = [(unit, ctx.pattern_of(unit)) for unit in ctx.plan.units]
    return tuple(unit for unit, its in patterns if its.output is Output.ONE_FOR_ALL and its.handler is None)


class Joins:
    """The joins of a plan, and who reads what they join.

    A value that only moves or clamps another one has the same grid, and so counts as that one: what reads it reads the
    integers of both.
    """

    def __init__(self, gm: GraphModule, ctx: PassContext) -> None:
        plan = ctx.plan
        self.units: tuple[QuantUnit, ...] = joins_of(ctx)
        """In the order of the graph."""
        self._order = {unit.root: index for index, unit in enumerate(self.units)}
        self._plan = plan
        self._nodes = nodes_by_name(gm)
        self._unit_of = plan.unit_of()
        self._on_qparams_of: dict[TensorRef, list[TensorRef]] = {}
        for ref in plan.policies:
            if ref.kind == "activation":
                self._on_qparams_of.setdefault(plan.qparams_owner(ref), []).append(ref)

    def joined(self) -> dict[TensorRef, Readers]:
        """The owner of the grid of every value that is joined -> what reads the values on that grid."""
        owners = (self._plan.qparams_owner(unit.roles[name]) for unit in self.units for name in unit.inputs)
        return {owner: self._reading(owner) for owner in dict.fromkeys(owners)}

    def _reading(self, owner: TensorRef) -> Readers:
        found: set[str] = set()
        others = False
        for ref in self._on_qparams_of[owner]:
            others |= self._plan.qparams_factor(ref) != 1  # the same integers stand for other numbers there
            for reader in self._readers(ref):
                unit = self._unit_of.get(reader.name)
                if unit is not None and unit.root in self._order:
                    found.add(unit.root)
                else:
                    others |= unit is None or not self._is_on_qparams(unit, owner)
        return Readers(tuple(sorted(found, key=self._order.__getitem__)), others)

    def _readers(self, ref: TensorRef) -> Sequence[Node]:
        """What reads the integers of a value. Of one that no unit makes, float operators read the real numbers."""
        node = self._nodes[ref.name]
        readers = [user for user in node.users if not is_shape_query(user)]
        return readers if ref.name in self._unit_of else [user for user in readers if user.name in self._unit_of]

    def _is_on_qparams(self, unit: QuantUnit, owner: TensorRef) -> bool:
        return "y" in unit.roles and self._plan.qparams_owner(unit.roles["y"]) == owner
