"""Shows the batches of all ranks to the observers of a model, in their order, as one process would have."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from torch import Tensor

from fxquant.calibration.batch_records import BatchRecords
from fxquant.calibration.recorders import add_counts, replayed
from fxquant.calibration.summed_counts import summed_counts
from fxquant.distributed.ranks import Ranks
from fxquant.errors import CalibrationError
from fxquant.fake_quantize.base import FakeQuantizeBase, observer_in
from fxquant.quantizer.data import PreparedModel


class Rows:
    """Tells after which batches the range history writes a row: this depends on their number alone."""

    def __init__(self, prepared: PreparedModel) -> None:
        self._history = copy.copy(prepared.calibration_statistics.history)
        self._history._buffers = {name: None if each is None else each.clone() for name, each in self._buffers()}
        self._history.ends = self._history.ends[:, :0].clone()
        self._history.first_nonfinite = self._history.first_nonfinite[:0].clone()
        self._begin = int(self._history.batches)
        self._seen = self.stretches = 0
        self._current = 0

    def _buffers(self) -> Iterable[tuple[str, Tensor | None]]:
        return self._history._buffers.items()

    def place(self, index: int) -> tuple[int, int]:
        """Return the number of a batch, of all that the model has seen, and the stretch that it belongs to.

        Args:
            index: Of the batch in this calibration; it does not fall from call to call.
        """
        while self._seen <= index:
            self._current = self.stretches
            self.stretches += int(self._history.update([]))
            self._seen += 1
        return self._begin + index, self._current


def stretches_of(prepared: PreparedModel, count: int) -> Mapping[int, int]:
    """Return the stretch that each of the first batches of this calibration belongs to, by the number of the batch."""
    rows = Rows(prepared)
    return {index: rows.place(index)[1] for index in range(count)}


def gathered(records: BatchRecords, prepared: PreparedModel, ranks: Ranks, total: int, found: bool) -> BatchRecords:
    """Return the records of all ranks together, the same in each of them.

    Raises:
        CalibrationError: no batch of any rank holds a value.
        RankError: the ranks have read different numbers of batches.
    """
    what = "what all ranks have observed"
    ranks.compare(what, {"number of batches": str(total)})
    held = ranks.gather_text("values of all ranks", json.dumps(found or bool(records.batches and records.values)))
    if not any(json.loads(each) for each in held):
        got, expected = f"{total} batches of zero samples", "at least one batch with a sample in it"
        raise CalibrationError("the calibration data holds no values", got=got, expected=expected)

    def bins_of(name: str) -> int:
        return int(observer_in(prepared.observers[name]).bins)

    everything = BatchRecords()
    for content in ranks.gather_bytes(what, records.packed(histograms=False)):
        everything.merge(BatchRecords.unpacked(content))
    everything.histograms = summed_counts(records.histograms, bins_of, ranks, what)
    return everything


def replay(prepared: PreparedModel, records: BatchRecords, total: int) -> None:
    """Show all batches to the observers, in their order, as ``observe`` would have."""
    rows, observers = Rows(prepared), prepared.observers
    named: dict[str, Any] = dict(observers._modules)
    show = replayed(records, named)
    watched = [name for name, _, _ in prepared.calibration_statistics.extremes()]
    for index in range(total):
        _, stretch = rows.place(index)
        show(index)
        seen = {name: records.values[name][index] for name in watched if index in records.values.get(name, {})}
        prepared.calibration_statistics.take_alone(seen)
        if rows.stretches > stretch or index + 1 == total:
            _take_counts(prepared, records, stretch)
        prepared.calibration_statistics.update(observers)
    for made in named.values():
        if isinstance(made, FakeQuantizeBase) and made.is_on("observer_enabled"):
            with suppress(CalibrationError):  # it has seen nothing
                made.choose_grid()


def _take_counts(prepared: PreparedModel, records: BatchRecords, stretch: int) -> None:
    given = []
    for name, made in prepared.observers._modules.items():
        counted = records.histograms.get((stretch, name))
        if counted is not None:
            observer: Any = observer_in(made)
            shapes = (fields[1] for fields in records.values[name].values() if int(fields[1].prod()))
            given.append((observer, counted, tuple(next(shapes).tolist())))
    add_counts(given)
