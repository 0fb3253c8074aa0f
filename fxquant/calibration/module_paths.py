"""Finds where a value stands in the user's model: which modules make it and read it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch.fx import GraphModule

from fxquant.graph.query import nodes_by_name, qualified_name
from fxquant.plan.quant_plan import QuantPlan
from fxquant.plan.spec import TensorRef


@dataclass(frozen=True, slots=True)
class ModulePaths:
    """Holds the name of a value, and the modules that make and read it."""

    name: str
    uses: tuple[str, ...]
    """Paths of modules, each with ``output`` or ``input``; the one that makes it is first."""

    @property
    def short(self) -> str:
        """Return the module that makes it, or else the first that reads it; the name where there is none."""
        return self.uses[0] if self.uses else self.name

    def __str__(self) -> str:
        return f"{self.name} ({', '.join(self.uses)})" if self.uses else self.name


def module_paths_of(refs: Iterable[TensorRef], gm: GraphModule, plan: QuantPlan) -> dict[TensorRef, ModulePaths]:
    """Return each value's name, and the paths of the modules that make and read it: ``relu (conv output, fc input)``.

    A unit that stands at top level is called by the name of its last node.
    """
    nodes = nodes_by_name(gm)
    writers: dict[TensorRef, list[str]] = {ref: [] for ref in refs}
    read: dict[TensorRef, list[str]] = {ref: [] for ref in writers}
    for unit in plan.units:
        where = qualified_name(nodes[unit.nodes[0]]) or unit.root
        for role, ref in unit.roles.items():
            if ref in writers:
                (writers if role == "y" else read)[ref].append(f"{where} {'output' if role == 'y' else 'input'}")
    return {ref: ModulePaths(ref.name, tuple(dict.fromkeys(writers[ref] + read[ref]))) for ref in writers}
