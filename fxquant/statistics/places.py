"""Where a value stands in the user's model: which modules make it and read it."""

from __future__ import annotations

from collections.abc import Iterable

from torch.fx import GraphModule

from fxquant.graph.query import nodes_by_name, qualified_name
from fxquant.plan import QuantPlan
from fxquant.spec import TensorRef


def places_of(refs: Iterable[TensorRef], gm: GraphModule, plan: QuantPlan) -> dict[TensorRef, str]:
    """Each value's name, and the paths of the modules that make and read it: ``relu (conv output, fc input)``.

    A unit that stands at top level is called by the name of its last node.
    """
    nodes = nodes_by_name(gm)
    made: dict[TensorRef, list[str]] = {ref: [] for ref in refs}
    read: dict[TensorRef, list[str]] = {ref: [] for ref in made}
    for unit in plan.units:
        where = qualified_name(nodes[unit.nodes[0]]) or unit.root
        for role, ref in unit.roles.items():
            if ref in made:
                (made if role == "y" else read)[ref].append(f"{where} {'output' if role == 'y' else 'input'}")
    found = {}
    for ref in made:
        uses = list(dict.fromkeys(made[ref] + read[ref]))
        found[ref] = f"{ref.name} ({', '.join(uses)})" if uses else ref.name
    return found
