"""The rows of a table of qparams: what a plan shares is one row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal

from torch.fx import GraphModule

from fxquant.exchange.given import TensorQParams
from fxquant.graph.query import nodes_by_name
from fxquant.plan.quant_plan import QuantPlan
from fxquant.plan.spec import QParams, TensorRef


def rows_of(plan: QuantPlan, known: Mapping[TensorRef, QParams], gm: GraphModule) -> list[TensorQParams]:
    """Make a row for each tensor that owns its qparams, with those that share them, in the order of a graph."""
    places = {name: place for place, name in enumerate(nodes_by_name(gm))}

    def order(ref: TensorRef) -> int:
        return places.get(ref.name.rpartition("@")[2] if ref.kind == "parameter" else ref.name, len(places))

    names = names_of((*plan.policies, *known))
    owners: dict[TensorRef, list[TensorRef]] = {}
    for ref in sorted(plan.policies, key=order):
        owners.setdefault(plan.qparams_owner(ref), []).append(ref)
    found = []
    for ref in dict.fromkeys(
        plan.qparams_owner(ref) if ref in plan.policies else ref for ref in sorted(known, key=order)
    ):
        members = [member for member in owners.get(ref, ()) if member != ref]
        own = known.get(ref)
        if own is None:  # a converted model keeps what it needs: then a member stands for the owner
            ref = next(member for member in members if member in known)
            members, own = [member for member in members if member != ref and member in known], known[ref]
        factors = tuple(plan.qparams_factor(member) for member in members)
        shared = tuple(names[member] for member in members)
        kind: Literal["activation", "weight"] = "weight" if ref.kind == "parameter" else "activation"
        plain = QParams(own.scheme, own.scale.detach().cpu(), own.zero_point.detach().cpu())
        found.append(TensorQParams(names[ref], kind, plain, shared, factors))
    return found


def names_of(refs: Iterable[TensorRef]) -> dict[TensorRef, str]:
    """Name each tensor as users know it: a weight by its path alone, unless several units use it."""
    given = list(dict.fromkeys(refs))
    paths = Counter(ref.name.partition("@")[0] for ref in given if ref.kind == "parameter")
    names = {}
    for ref in given:
        path = ref.name.partition("@")[0]
        names[ref] = path if ref.kind == "parameter" and paths[path] == 1 else ref.name
    return names
