"""Numbers that each batch gives, measured in the ranks that share work, and folded in the order of the batches."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from fxquant.distributed.facts import data_facts
from fxquant.distributed.shares import DealtBatches
from fxquant.distributed.sharing import active_ranks


class SharedNumbers:
    """Deals batches to the ranks, and folds what they give: at once where this process does all of the work.

    A sum of floats depends on its order. So numbers are not added up in the ranks: each rank gets those of all
    batches, and folds them as one process would. JSON writes a float with all of its bits.

    Args:
        what: What is measured, for messages.
        data: Yields batches.
        num_batches: Stop after so many.
        facts: Gives what all ranks have to have alike; called where there are several.
        fold: Called with the name of a number and with what a batch gave.
    """

    def __init__(
        self,
        what: str,
        data: Iterable[Any],
        num_batches: int | None,
        facts: Callable[[], Mapping[str, str]],
        fold: Callable[[str, Any], None],
    ) -> None:
        self._what, self._fold, self._ranks = what, fold, active_ranks()
        self._data: Any = islice(data, num_batches)
        self._kept: dict[int, list[tuple[str, Any]]] = {}
        self.rank, self.size = 0, 1
        if self._ranks is not None:
            self.rank, self.size = self._ranks.rank, self._ranks.size
            self._data = DealtBatches(data, num_batches)
            self._ranks.compare(what, {**facts(), **data_facts(self._data.first)})

    def batches(self) -> Iterator[tuple[int, Any]]:
        """Yield the batches of this rank, each with its number."""
        return enumerate(self._data) if self._ranks is None else self._data.of_rank(self._ranks)

    def keep(self, batch: int, name: str, found: Any) -> None:
        """Take what a batch gave for a name: numbers, or lists of numbers."""
        if self._ranks is None:
            self._fold(name, found)
        else:
            self._kept.setdefault(batch, []).append((name, found))

    def fold_all(self) -> None:
        """Fold what the ranks have kept.

        Raises:
            RankError: a rank does not go on.
        """
        if self._ranks is None:
            return
        self._ranks.compare(f"the end of {self._what}", {"number of batches": str(self._data.total)})
        everything: dict[int, list[tuple[str, Any]]] = {}
        for content in self._ranks.gather_bytes(self._what, json.dumps(self._kept).encode()):
            everything.update({int(batch): found for batch, found in json.loads(content).items()})
        for batch in sorted(everything):
            for name, found in everything[batch]:
                self._fold(name, found)


def compare_in_ranks(what: str, facts: Callable[[], Mapping[str, str]]) -> None:
    """Compare what all ranks that share work have to have alike; nothing where this process does all of the work.

    Raises:
        RankError: a rank has something else.
    """
    ranks = active_ranks()
    if ranks is not None:
        ranks.compare(what, facts())


def shared_map(what: str, count: int, measure: Callable[[int], Any]) -> list[Any]:
    """Return ``measure(0)``, ``measure(1)``, ..., each computed in one of the ranks that share work.

    Args:
        what: What is measured, for messages.
        count: How often.
        measure: Gives numbers, texts and lists of these, which depend on its argument alone.

    Raises:
        RankError: a rank does not go on.
    """
    ranks = active_ranks()
    if ranks is None:
        return [measure(index) for index in range(count)]
    own = {index: measure(index) for index in range(ranks.rank, count, ranks.size)}
    found: dict[int, Any] = {}
    for content in ranks.gather_bytes(what, json.dumps(own).encode()):
        found.update({int(index): value for index, value in json.loads(content).items()})
    return [found[index] for index in range(count)]
