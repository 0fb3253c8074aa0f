"""Adds up the counts of histograms over ranks: they agree on the ranges, and each brings its counts into these bins."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from fxquant.calibration.batch_records import Histogram, stacked
from fxquant.distributed.ranks import Ranks
from fxquant.errors import InputError
from fxquant.kernels.fake_quantize.histogram import merge_histograms

Key = tuple[int, str]
"""Number of the stretch, and name of the observer."""
MESSAGE = 1 << 26
"""Bytes of counts that one message holds at most, if no stretch alone has more."""


def summed_counts(
    own: Mapping[Key, Histogram], bins_of: Callable[[str], int], ranks: Ranks, what: str
) -> dict[Key, Histogram]:
    """Add up the counts of all ranks.

    The sum is exact: bins are a power of two wide, and counts are integers.

    Args:
        own: Those of this rank.
        bins_of: Returns how many bins an observer has, by its name.
        ranks: The ranks; they end with the same counts.
        what: For messages.

    Raises:
        InputError: an observer has seen another number of channels in one rank than in another.
        RankError: a rank does not go on.
    """
    # Agree on which observers counted, on how many channels, and on the range of each.
    sizes = _sizes(own, ranks, what)
    if not sizes:
        return {}
    keys = sorted(sizes)
    low, high = _ranges(own, keys, sizes, ranks, what)
    found: dict[Key, Histogram] = {}
    for some in _messages(keys, sizes, bins_of):
        # Counts of equally many bins are moved into the bins of all ranks at once.
        parts: dict[Key, Histogram] = {}
        for bins in sorted({bins_of(name) for _, name in some}):
            alike = [key for key in some if bins_of(key[1]) == bins]
            rows = [sizes[key] for key in alike]
            empty = torch.zeros(sum(rows), bins, dtype=torch.int64)
            here = stacked(own.get(key) or _unseen(sizes[key], bins) for key in alike)
            lows, highs = (torch.cat([each[key] for key in alike]) for each in (low, high))
            moved = zip(*(each.split(rows) for each in merge_histograms(empty, lows, highs, *here)), strict=True)
            parts.update(zip(alike, moved, strict=True))
        total = ranks.reduce(f"counts: {what}", torch.cat([parts[key][0].flatten() for key in some]))
        for key, counts in zip(some, total.split([parts[key][0].numel() for key in some]), strict=True):
            found[key] = (counts.view_as(parts[key][0]), *parts[key][1:])
    return found


def _sizes(own: Mapping[Key, Histogram], ranks: Ranks, what: str) -> dict[Key, int]:
    """Return how many rows each histogram has, of those that any rank has."""
    told = json.dumps([[*key, len(counted[1])] for key, counted in own.items()])
    sizes: dict[Key, int] = {}
    for text in ranks.gather_bytes(f"histograms: {what}", told.encode()):
        for stretch, name, rows in json.loads(text):
            if sizes.setdefault((stretch, name), rows) != rows:
                raise InputError(
                    "the number of channels differs between ranks", at=name, got=rows, expected=sizes[stretch, name]
                )
    return sizes


def _ranges(
    own: Mapping[Key, Histogram], keys: Sequence[Key], sizes: Mapping[Key, int], ranks: Ranks, what: str
) -> tuple[dict[Key, Tensor], dict[Key, Tensor]]:
    """Return the smallest and the largest values that all ranks have seen."""
    here = [own.get(key) or _unseen(sizes[key], 0) for key in keys]
    ends = torch.cat([*(each[1] for each in here), *(-each[2] for each in here)])
    smallest = ranks.reduce(f"ranges: {what}", ends, smallest=True)
    low, high = (each.split([sizes[key] for key in keys]) for each in smallest.chunk(2))
    return dict(zip(keys, low, strict=True)), {key: -each for key, each in zip(keys, high, strict=True)}


def _unseen(rows: int, bins: int) -> Histogram:
    nothing = torch.full((rows,), torch.inf)
    return torch.zeros(rows, bins, dtype=torch.int64), nothing, -nothing


def _messages(keys: Sequence[Key], sizes: Mapping[Key, int], bins_of: Callable[[str], int]) -> Iterator[list[Key]]:
    """Yield what goes into each message: whole stretches, one or several."""
    some: list[Key] = []
    held = 0
    for stretch in sorted({each for each, _ in keys}):
        parts = [key for key in keys if key[0] == stretch]
        size = 8 * sum(sizes[key] * bins_of(key[1]) for key in parts)
        if some and held + size > MESSAGE:
            yield some
            some, held = [], 0
        some, held = some + parts, held + size
    yield some
