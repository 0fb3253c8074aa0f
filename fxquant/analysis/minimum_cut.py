"""The cheapest way to part the nodes of a network in two: a minimum cut."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Iterable

NEVER = 1 << 60
"""Capacity of an edge that no cheapest cut goes through."""


class Network:
    """Directed edges with capacities, whole numbers that are at least 0. Edges that are added twice add up."""

    def __init__(self) -> None:
        self._left: dict[Hashable, dict[Hashable, int]] = defaultdict(dict)

    def add(self, start: Hashable, end: Hashable, capacity: int) -> None:
        """An edge: it is cut, at the price of its capacity, where ``start`` is on the source's side alone."""
        self._left[start][end] = self._left[start].get(end, 0) + capacity
        self._left[end].setdefault(start, 0)

    def cut(self, source: Hashable, sink: Hashable) -> set[Hashable]:
        """The source's side of a cheapest cut; of several, the one with the largest such side. Uses the network up.

        Source:
            Edmonds and Karp, "Theoretical Improvements in Algorithmic Efficiency for Network Flow Problems", JACM 19
            (1972): flow along shortest paths until there is none; then what cannot reach the sink is the source's side.
        """
        while path := self._shortest(source, sink):
            flow = min(self._left[a][b] for a, b in path)
            for a, b in path:
                self._left[a][b] -= flow
                self._left[b][a] += flow
        return set(self._left) - self._reaching(sink)

    def _shortest(self, source: Hashable, sink: Hashable) -> list[tuple[Hashable, Hashable]]:
        before: dict[Hashable, Hashable] = {source: source}
        waiting = deque([source])
        while waiting and sink not in before:
            node = waiting.popleft()
            for other, left in self._left[node].items():
                if left and other not in before:
                    before[other] = node
                    waiting.append(other)
        path: list[tuple[Hashable, Hashable]] = []
        node = sink
        while node in before and node != source:
            path.append((before[node], node))
            node = before[node]
        return path

    def _reaching(self, sink: Hashable) -> set[Hashable]:
        found = {sink}
        waiting: deque[Hashable] = deque([sink])
        while waiting:
            node = waiting.popleft()
            found_now: Iterable[Hashable] = (a for a in self._left[node] if a not in found and self._left[a][node])
            for other in list(found_now):
                found.add(other)
                waiting.append(other)
        return found
