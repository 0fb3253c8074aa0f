"""Operators that make several tensors at once are units only together with everything that takes one of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch.fx import Node

from fxquant.graph.query import value_of
from fxquant.patterns.pattern import Match

HAS_FLOAT_READER = "not all of what takes one of its tensors can run on integers"


def has_external_item(matches: Sequence[Match]) -> set[Node]:
    """Roots of matches that cannot be units, since integers of several tensors have no form that a float reader takes.

    A split of which a part is read by something that is no match; a part of what is no match.
    """
    kept = {found.nodes[-1]: found for found in matches if found.pattern.can_give_integers}
    dropped: set[Node] = set()
    while gone := {root for root, found in kept.items() if _has_external_item(found, kept.keys())}:
        dropped |= gone
        kept = {root: found for root, found in kept.items() if root not in gone}
    return dropped


def _has_external_item(found: Match, roots: Collection[Node]) -> bool:
    root = found.nodes[-1]
    sources = [found.captures[name] for name in found.inputs]
    if any(value_of(source) is None and source not in roots for source in sources):
        return True
    return value_of(root) is None and any(user not in roots for user in root.users)
