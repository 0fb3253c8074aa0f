"""Joins channels that must be scaled by one factor, and notes which must keep their scale, and why."""

from __future__ import annotations

from collections.abc import Sequence

Ids = tuple[int, ...]
"""The channels of one value or weight, in order; a channel may stand there several times."""


class Sets:
    """Disjoint sets of numbers from 0 on."""

    def __init__(self, count: int = 0) -> None:
        self._parent = list(range(count))

    def __len__(self) -> int:
        return len(self._parent)

    def new(self, count: int) -> Ids:
        """Add numbers, each in a set of its own."""
        first = len(self._parent)
        self._parent.extend(range(first, first + count))
        return tuple(range(first, first + count))

    def find(self, number: int) -> int:
        """Return the number that stands for the set: its smallest."""
        root = number
        while self._parent[root] != root:
            root = self._parent[root]
        while self._parent[number] != root:
            self._parent[number], number = root, self._parent[number]
        return root

    def join(self, a: int, b: int) -> int:
        """Make two sets one, and return what stands for it."""
        low, high = sorted((self.find(a), self.find(b)))
        self._parent[high] = low
        return low


class Channels:
    """Channels of all values of a graph. Those of one set have the same factor."""

    def __init__(self) -> None:
        self._sets = Sets()
        self._reasons: dict[int, str] = {}
        """What stands for a set -> why it keeps its scale."""

    def new(self, count: int) -> Ids:
        """Add channels that nothing ties to others."""
        return self._sets.new(count)

    def __len__(self) -> int:
        return len(self._sets)

    def factor_of(self, channel: int) -> int:
        """Return the channel that stands for all with the same factor."""
        return self._sets.find(channel)

    def join(self, a: Sequence[int], b: Sequence[int]) -> None:
        """Give two rows of channels, of one length, the same factors."""
        for one, other in zip(a, b, strict=True):
            reasons = [self.reason(one), self.reason(other)]
            root = self._sets.join(one, other)
            if reason := next(filter(None, reasons), ""):
                self._reasons[root] = reason

    def fix(self, ids: Sequence[int], reason: str) -> None:
        """Let channels keep their scale. The first reason stays."""
        for channel in ids:
            self._reasons.setdefault(self._sets.find(channel), reason)

    def reason(self, channel: int) -> str:
        """Return why a channel keeps its scale; empty if it need not."""
        return self._reasons.get(self._sets.find(channel), "")
