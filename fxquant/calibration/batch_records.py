"""What single batches of a calibration have shown: kept by their numbers, packed, sent and added up in any order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import torch
from safetensors.torch import load, save
from torch import Tensor

from fxquant.kernels.fake_quantize.histogram import merge_histograms

Fields = tuple[Tensor, ...]
Histogram = tuple[Tensor, Tensor, Tensor]
"""int64 [rows, bins], float32 [rows] and float32 [rows], as ``fxquant::histogram`` has them."""


def stacked(histograms: Iterable[Histogram]) -> Histogram:
    """Return several histograms of equally many bins as one, with the rows of all of them."""
    counts, low, high = (torch.cat(each) for each in zip(*histograms, strict=True))
    return counts, low, high


@dataclass(slots=True)
class BatchRecords:
    """What a part of the batches has shown.

    ``values`` holds what is added up in the order of the batches: ranges, means, extremes. ``histograms`` holds counts,
    which are exact in any order, for each stretch of batches after which the range history writes a row.
    """

    batches: list[int] = field(default_factory=list)
    """Numbers of the batches, from 0."""
    values: dict[str, dict[int, Fields]] = field(default_factory=dict)
    """Name of what was measured -> number of the batch -> tensors."""
    histograms: dict[tuple[int, str], Histogram] = field(default_factory=dict)
    """(number of the stretch, name of the observer) -> counts."""
    digests: dict[int, int] = field(default_factory=dict)
    """Number of the batch -> 64 bits that tell it from another batch; of none, or of all."""

    def add(self, name: str, batch: int, fields: Fields) -> None:
        """Keep what one batch has shown."""
        self.values.setdefault(name, {})[batch] = fields

    def count(self, stretch: int, name: str, counted: Histogram) -> None:
        """Add counts to those of a stretch."""
        before = self.histograms.get((stretch, name))
        merged = counted if before is None else merge_histograms(*before, *counted)
        self.histograms[stretch, name] = merged

    def merge(self, other: BatchRecords) -> None:
        """Take what another part of the batches has shown."""
        self.batches += other.batches
        self.digests |= other.digests
        for name, found in other.values.items():
            self.values.setdefault(name, {}).update(found)
        for (stretch, name), counted in other.histograms.items():
            self.count(stretch, name, counted)

    def without(self, unwanted: AbstractSet[int], stretch_of: Mapping[int, int]) -> BatchRecords:
        """Return what the batches have shown whose stretch holds no unwanted one: counts are of whole stretches.

        Args:
            unwanted: Numbers of the batches that have to be left out.
            stretch_of: Number of each batch -> its stretch.
        """
        gone = {stretch_of[batch] for batch in self.batches if batch in unwanted}
        left = [batch for batch in self.batches if stretch_of[batch] not in gone]
        values = {
            name: {batch: fields for batch, fields in found.items() if stretch_of[batch] not in gone}
            for name, found in self.values.items()
        }
        counts = {key: counted for key, counted in self.histograms.items() if key[0] not in gone}
        digests = {batch: digest for batch, digest in self.digests.items() if stretch_of[batch] not in gone}
        return BatchRecords(left, values, counts, digests)

    def packed(self, *, histograms: bool = True) -> bytes:
        """Return all of it as bytes in the format of safetensors; ``histograms`` says whether with the counts."""
        tensors = {"batches": torch.tensor(self.batches, dtype=torch.int64)}
        if self.digests:
            tensors["digests"] = torch.tensor([self.digests[batch] for batch in self.batches], dtype=torch.int64)
        for name, found in self.values.items():
            for place, (batches, fields) in enumerate(_alike(found)):
                key = f"value/{name}/{place}"
                tensors[f"{key}/batches"] = torch.tensor(batches, dtype=torch.int64)
                tensors.update({f"{key}/{index}": each for index, each in enumerate(fields)})
        for (stretch, name), counted in self.histograms.items() if histograms else ():
            tensors.update({f"count/{name}/{stretch}/{index}": each for index, each in enumerate(counted)})
        return bytes(save({name: each.contiguous() for name, each in tensors.items()}))

    @classmethod
    def unpacked(cls, content: bytes) -> BatchRecords:
        """Make one of what ``packed`` gave."""
        tensors = load(content)
        found = cls(tensors.pop("batches").tolist())
        if (digests := tensors.pop("digests", None)) is not None:
            found.digests = dict(zip(found.batches, digests.tolist(), strict=True))
        groups: dict[tuple[str, str, str], dict[str, Tensor]] = {}
        for key, value in tensors.items():
            kind, name, place, part = _split(key)
            groups.setdefault((kind, name, place), {})[part] = value
        for (kind, name, place), parts in groups.items():
            if kind == "count":
                found.histograms[int(place), name] = parts["0"], parts["1"], parts["2"]
                continue
            numbers = parts.pop("batches").tolist()
            columns = [parts[str(index)] for index in range(len(parts))]
            for row, batch in enumerate(numbers):
                found.add(name, batch, tuple(column[row] for column in columns))
        return found


def _split(key: str) -> tuple[str, str, str, str]:
    kind, rest = key.split("/", 1)
    name, place, part = rest.rsplit("/", 2)
    return kind, name, place, part


def _alike(found: Mapping[int, Fields]) -> Iterator[tuple[list[int], Fields]]:
    """Yield batches whose tensors have the same shapes and dtypes, with these tensors stacked."""
    groups: dict[object, list[int]] = {}
    for batch, fields in found.items():
        groups.setdefault(tuple((each.shape, each.dtype) for each in fields), []).append(batch)
    for batches in groups.values():
        yield batches, tuple(torch.stack(each) for each in zip(*(found[batch] for batch in batches), strict=True))
