"""Calibrates in several ranks: each runs its share of the batches, and all end with the bits of one process."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from tqdm import tqdm

from fxquant.calibration.batch_records import BatchRecords
from fxquant.calibration.batches import check_iterable, expected_batches, holds_values, inputs_of
from fxquant.calibration.observers import observers_by_node
from fxquant.calibration.recorders import ChannelRecorder, recorder_of
from fxquant.distributed.facts import data_facts
from fxquant.distributed.ranks import Ranks
from fxquant.distributed.shares import DealtBatches
from fxquant.errors import CalibrationError, InputError, error_context
from fxquant.quantizer.calibrate import (
    calibrate_prepared,
    check_has_observers,
    observe_batch,
    run_float_graph,
    warn_of_calibration,
)
from fxquant.quantizer.data import PreparedModel, outside_inference_mode
from fxquant.quantizer.rank_files import RankFiles, model_facts
from fxquant.quantizer.replay_records import Rows, gathered, replay, stretches_of

SAVE_EVERY = 60.0
"""Seconds between two writings of what a rank has observed."""


@outside_inference_mode
def calibrate_in_ranks(
    prepared: Any, data: Iterable[Any], ranks: Ranks, *, num_batches: int | None, progress: bool, until_stable: bool
) -> Any:
    """Calibrate as :func:`fxquant.calibrate` does, with each batch in one of the ranks.

    Each rank keeps what its batches show, by the number of the batch. At the end all ranks have the records of all, and
    replay them to their observers in the order of the batches. Counts of histograms are added up before.

    Of an interrupt the files keep what was observed; without a folder for them, the observers of each rank keep what
    its own batches have shown.

    Raises:
        InputError: something that has no such record: ``until_stable``, a handler, an observer or an ``observe`` of the
            user's, a model that writes to its buffers or that has branches; or a batch that an earlier run has observed
            is another one now, or is not there.
        CalibrationError: the model was trained, and has no observers.
        RankError: another rank does not go on, or was given something else.
    """
    _check(prepared, until_stable)
    check_iterable(data)
    expected_batches(data, num_batches)
    # All ranks compare what they were given before the first batch runs.
    dealt = DealtBatches(data, num_batches)
    facts = {**model_facts(prepared), **data_facts(dealt.first)}
    ranks.compare("calibrate", facts)
    if dealt.first is None:
        raise CalibrationError("there is no calibration data", got="no batch", expected="at least one batch")
    # What earlier runs have observed is taken from their files.
    files = RankFiles(ranks, facts)
    limit = num_batches if dealt.total is None else dealt.total
    taken = files.taken(limit, lambda count: stretches_of(prepared, count))
    done = set(taken.batches)
    ranks.compare("what earlier runs have observed", {"checkpoint": str(sorted(done))})
    for index, item in dealt.done_of_rank(ranks, done):
        files.check(index, item)
    ranks.compare("the batches that earlier runs have observed", {})
    # This rank runs its share.
    run = _Share(prepared, files)
    total = None if dealt.total is None else -(-(dealt.total - len(done)) // ranks.size)
    own = dealt.of_rank(ranks, done.__contains__)
    example = prepared.example_args if prepared.has_example else None
    try:
        for index, item in tqdm(own, "calibrate", total, unit="batch", disable=not progress or ranks.rank > 0):
            if index in done:
                files.check(index, item)
                continue
            what = f"calibration batch {index}"
            args, kwargs = inputs_of(item, example, what, prepared.graph_module)
            with error_context(what):
                run.add(index, args, kwargs, files.digest_of(item))
    except BaseException as error:
        files.write(run.records)
        if isinstance(error, KeyboardInterrupt) and ranks.checkpoint is None and run.records.batches:
            replay(prepared, run.records, 1 + max(run.records.batches))  # those of other ranks count as empty
        raise
    files.write(run.records)
    # All records come together, and are shown to the observers.
    if ranks.rank == 0:
        run.records.merge(taken)
    counts = int(dealt.total or 0)
    _check_end(counts, done)
    found = gathered(run.records, prepared, ranks, counts, run.found_values)
    replay(prepared, found, counts)
    files.remove()
    warn_of_calibration(prepared)
    return prepared


def _check(prepared: PreparedModel, until_stable: bool) -> None:
    reasons = {
        "until_stable=True, which looks at the ranges after each batch": until_stable,
        f"handlers of patterns, which keep what they observe: {', '.join(prepared.handlers)}": bool(prepared.handlers),
        f"a model that writes to its buffers: {', '.join(prepared.run_state.buffers)}": prepared.run_state.buffers,
        f"branches of torch.cond: {', '.join(dict.fromkeys(path for path, _ in prepared.branches))}": prepared.branches,
        f"{type(prepared).__name__}, which has an observe or a calibrate of its own": _is_overridden(prepared),
    }
    for reason, holds in reasons.items():
        if holds:
            raise InputError(
                "this calibration cannot be shared among ranks",
                got=reason,
                hint="calibrate outside of share_work, in each rank or in one",
            )
    check_has_observers(prepared)


def _is_overridden(prepared: Any) -> bool:
    steps = (prepared.observe, observe_batch), (prepared.calibrate, calibrate_prepared)
    return any(getattr(own, "__func__", own) is not usual for own, usual in steps)


def _check_end(total: int, done: set[int]) -> None:
    if done and max(done) >= total:
        raise InputError(
            "the data ends before the batches that an earlier run has observed",
            got=f"{total} batches",
            expected=f"at least {1 + max(done)}, as in the files of share_work(checkpoint=...)",
            hint="give num_batches, or another folder for other data",
        )


class _Share:
    """Runs the batches of one rank, and keeps what each has shown."""

    def __init__(self, prepared: PreparedModel, files: RankFiles) -> None:
        self._prepared, self._files = prepared, files
        self.records = BatchRecords()
        self.found_values = False
        self._saved = time.monotonic()
        made = {name: recorder_of(each, name) for name, each in prepared.observers._modules.items() if each is not None}
        self._recorders: dict[str, Any] = {name: each for name, each in made.items() if each is not None}
        self._shown = nn.ModuleDict()
        self._shown._modules.update({name: each or nn.Identity() for name, each in made.items()})
        self._extremes = [
            (name, value, ChannelRecorder(each), name.startswith("channels/"))
            for name, value, each in prepared.calibration_statistics.extremes()
        ]
        self._rows = Rows(prepared)

    def add(self, index: int, args: tuple[Any, ...], kwargs: dict[str, Any], digest: int | None) -> None:
        """Run one batch. ``digest`` tells it from another one; None where no file keeps what it shows."""
        prepared = self._prepared
        self.found_values |= holds_values((args, kwargs))
        number, stretch = self._rows.place(index)
        # Who sees this batch.
        due = [each for each in self._extremes if not each[3] or prepared.calibration_statistics.may_be_due(number)]
        beside: dict[str, list[nn.Module]] = {}
        for _, value, recorder, _ in due:
            beside.setdefault(value, []).append(recorder)
        recorders = {**self._recorders, **{name: recorder for name, _, recorder, _ in due}}
        # Run it; of a batch that fails nothing is kept.
        prepared.weight_checksums.record(prepared.graph_module)
        try:
            with torch.no_grad():
                run_float_graph(prepared, observers_by_node(prepared.plan, self._shown, beside), args, kwargs)
        except BaseException:
            for recorder in recorders.values():
                recorder.forget()
            raise
        # Keep what was recorded, and write it from time to time.
        for name, recorder in recorders.items():
            recorder.keep(self.records, name, index, stretch)
        self.records.batches.append(index)
        if digest is not None:
            self.records.digests[index] = digest
        if time.monotonic() - self._saved > SAVE_EVERY:
            self._files.write(self.records)
            self._saved = time.monotonic()
