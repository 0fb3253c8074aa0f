"""Finds the regions of matrix products that sum over channels: queries and keys, head by head."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fxquant.equalization.channels import Channels, Ids
from fxquant.equalization.tracker import LayerEnd, Summed, Tracker
from fxquant.plan.region import FIXED, End, Region


def product_regions(tracker: Tracker, ends: Sequence[LayerEnd]) -> list[Region]:
    """Return a region for each pair of queries and keys of which some channels can be scaled.

    All channels of such products then keep their scale for the other regions.

    Args:
        tracker: Has followed all channels.
        ends: The dimensions of layers that can be scaled.
    """
    together: dict[frozenset[int], list[Summed]] = {}
    for each in tracker.sums:
        for ids, others in ((each.left, each.right), (each.right, each.left)):
            _join_partners(tracker.channels, ids, others)
    for each in tracker.sums:
        members = frozenset(map(tracker.channels.factor_of, (*each.left, *each.right)))
        together.setdefault(members, []).append(each)
    several = _in_several(together)
    found = [
        region
        for members, sums in together.items()
        if members.isdisjoint(several) and (region := _region(tracker, sums, ends)) is not None
    ]
    for each in tracker.sums:
        tracker.channels.fix(each.left, f"{each.node.name} multiplies it by other values")
        tracker.channels.fix(each.right, f"{each.node.name} sums over its channels")
    return found


def _join_partners(channels: Channels, ids: Ids, others: Ids) -> None:
    """Let channels that one channel is multiplied with, as queries of several heads with one key, have one factor."""
    first: dict[int, int] = {}
    for channel, other in zip(ids, others, strict=True):
        partner = first.setdefault(channels.factor_of(channel), other)
        channels.join((partner,), (other,))


def _in_several(together: Iterable[frozenset[int]]) -> set[int]:
    """Return the channels that products of several kinds sum over."""
    seen: set[int] = set()
    several: set[int] = set()
    for members in together:
        several |= members & seen
        seen |= members
    return several


def _region(tracker: Tracker, sums: Sequence[Summed], ends: Sequence[LayerEnd]) -> Region | None:
    channels = tracker.channels
    left, right = (
        [channels.factor_of(channel) for each in sums for channel in ids(each)]
        for ids in (lambda each: each.left, lambda each: each.right)
    )
    partner = dict(zip(left, right, strict=True))
    read = {channels.factor_of(c) for end in ends if end.kind != "rows" for c in end.ids}
    read |= {channels.factor_of(c) for clamp in tracker.clamps for c in clamp.tracked.ids}
    made = {channels.factor_of(c) for end in ends if end.kind == "rows" for c in end.ids}
    free = [
        (query, key)
        for query, key in partner.items()
        if query != key and {query, key} <= made - read and not channels.reason(query) and not channels.reason(key)
    ]
    if not free or len({key for _, key in free}) < len(free) or {q for q, _ in free} & {k for _, k in free}:
        return None
    queries = {query: index for index, (query, _) in enumerate(free)}
    keys = {key: index for index, (_, key) in enumerate(free)}
    sources, sinks = (_ends(channels, ends, number, kind) for number, kind in ((queries, "rows"), (keys, "partner")))
    names = tuple(dict.fromkeys(each.node.name for each in sums))
    return Region(sources, sinks, channels=len(free), total=len(partner), products=names)


def _ends(channels: Channels, ends: Sequence[LayerEnd], number: Mapping[int, int], kind: str) -> tuple[End, ...]:
    found = []
    for end in ends:
        factors = tuple(number.get(channels.factor_of(channel), FIXED) for channel in end.ids)
        if end.kind == "rows" and {*factors} != {FIXED}:
            found.append(End(end.path, kind, factors))  # type: ignore[arg-type]
    return tuple(found)
