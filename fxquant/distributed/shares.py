"""Deals the batches of a data set to ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from fxquant.distributed.ranks import Ranks


class DealtBatches:
    """The batches of a data set, of which each rank reads its own and the first one.

    Of a list, and of a DataLoader of a data set that is read by index, a rank reads no other batch; all other data is
    read by every rank, which leaves out what is not its own. An order that a DataLoader draws is drawn once, and is the
    order of an iteration over it.

    Args:
        data: Yields batches.
        num_batches: Stop after so many.
    """

    def __init__(self, data: Iterable[Any], num_batches: int | None) -> None:
        self.total: int | None = None
        """Known from the beginning for data with a length, and for other data when it has been read."""
        self._data: Any = data
        self._order: Sequence[Any] | None = None
        if isinstance(data, DataLoader) and _deals_by_index(data):
            # An iterator of a DataLoader draws the seed of its workers before its sampler draws the order.
            torch.empty((), dtype=torch.int64).random_(generator=data.generator)
            self._order = list(islice(data.batch_sampler or (), num_batches))
            self.total = len(self._order)
            first = next(iter(self._loader(self._order[:1], workers=0)), None)
        elif isinstance(data, Sequence):
            self.total = len(data) if num_batches is None else min(num_batches, len(data))
            first = data[0] if self.total else None
        else:
            iterator = islice(data, num_batches)
            start = list(islice(iterator, 1))
            first = start[0] if start else None
            self._data = chain(start, iterator)
            self.total = None if start else 0
        self.first: Any = first
        """The first batch; None where there is none."""

    def of_rank(self, ranks: Ranks, done: Callable[[int], bool] = lambda index: False) -> Iterator[tuple[int, Any]]:
        """Yield the batches of this rank that are not ``done``, each with its number.

        Batches go round: the first one that is not done to rank 0, the next one to rank 1. Of data that can be read in
        its order alone, those that are done go round by themselves, and are yielded, too.
        """
        if self.total is None:
            turns = {True: 0, False: 0}
            number = 0
            for number, item in enumerate(self._data, 1):
                kind = done(number - 1)
                if turns[kind] % ranks.size == ranks.rank:
                    yield number - 1, item
                turns[kind] += 1
            self.total = number
            return
        yield from self._read([index for index in range(self.total) if not done(index)][ranks.rank :: ranks.size])

    def done_of_rank(self, ranks: Ranks, done: Iterable[int]) -> Iterator[tuple[int, Any]]:
        """Yield this rank's share of batches that are done; none of data that can be read in its order alone."""
        if self.total is not None:
            yield from self._read([index for index in sorted(done) if index < self.total][ranks.rank :: ranks.size])

    def _read(self, own: Sequence[int]) -> Iterator[tuple[int, Any]]:
        if self._order is None:
            yield from ((index, self._data[index]) for index in own)
        elif own:
            loader = self._loader([self._order[index] for index in own], self._data.num_workers)
            yield from zip(own, loader, strict=True)

    def _loader(self, order: Sequence[Any], workers: int) -> Iterable[Any]:
        given = self._data
        more = {"prefetch_factor": given.prefetch_factor, "timeout": given.timeout} if workers else {}
        return DataLoader(
            given.dataset,
            batch_sampler=order,
            num_workers=workers,
            collate_fn=given.collate_fn,
            worker_init_fn=given.worker_init_fn,
            multiprocessing_context=given.multiprocessing_context if workers else None,
            **more,
        )


def _deals_by_index(loader: DataLoader[Any]) -> bool:
    """Tell whether a batch of a loader can be read without those before it, by the indices of its sampler.

    The batch sampler of an iterable data set gives no indices, and never ends; a subclass with an ``__iter__`` of its
    own may yield something else.
    """
    own: Any = type(loader).__iter__
    plain = own is DataLoader.__iter__ and loader.batch_sampler is not None
    return plain and not isinstance(loader.dataset, IterableDataset)
