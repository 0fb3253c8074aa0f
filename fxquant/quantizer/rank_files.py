"""What ranks compare before they calibrate together, and the files in which each keeps what it has observed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch

from fxquant.calibration.batch_records import BatchRecords
from fxquant.commandline import VERSION
from fxquant.distributed.facts import batch_digest, digest, digest_of_text, module_facts
from fxquant.distributed.ranks import Ranks
from fxquant.errors import InputError, writing
from fxquant.quantizer.data import PreparedModel
from fxquant.quantizer.state import measured


def model_facts(prepared: PreparedModel) -> dict[str, str]:
    """Return what ranks have to have alike: model, data types, weights, observers, and digests of what these saw."""
    return {
        **module_facts(prepared.graph_module, "model"),
        "plan or observers": digest_of_text(str(prepared.observers), *sorted(map(str, prepared.plan.units))),
        "observed ranges": digest(measured(prepared).state_dict()),
    }


class RankFiles:
    """The files of one calibration in the folder that ``share_work`` was given; nothing without a folder.

    A file holds what one rank of one run has observed, as safetensors. Its name begins with a digest of the model, of
    the first batch and of the versions: other calibrations leave it alone. It holds a digest of each batch, too.

    Args:
        ranks: Whose files they are.
        facts: What all ranks have alike.
    """

    def __init__(self, ranks: Ranks, facts: Mapping[str, str]) -> None:
        self._folder = ranks.checkpoint
        versions = {"version of fxquant": VERSION, "version of torch": torch.__version__}
        self._key = f"calibration-{digest_of_text(json.dumps({**facts, **versions}, sort_keys=True))}"
        self._ranks = ranks
        self._digests: dict[int, int] = {}
        self._before = [] if self._folder is None else sorted(self._folder.glob(f"{self._key}-*.safetensors"))
        number = 1 + max((int(path.stem.rsplit("-", 1)[1]) for path in self._before), default=0)
        self._own = f"{self._key}-rank{ranks.rank}-of{ranks.size}-{number}.safetensors"

    def taken(self, limit: int | None, stretches: Callable[[int], Mapping[int, int]]) -> BatchRecords:
        """Return what earlier runs have observed of the batches below a limit, each of them once.

        Args:
            limit: The number of batches that are asked for; None where only the end of the data tells.
            stretches: Given a number of batches, returns the stretch of each.

        Raises:
            InputError: a file cannot be read.
        """
        found = BatchRecords()
        for path in self._before:
            try:
                kept = BatchRecords.unpacked(path.read_bytes())
                if kept.digests.keys() != {*kept.batches}:
                    raise KeyError("digests")
                beyond = {batch for batch in kept.batches if limit is not None and batch >= limit}
                places = stretches(1 + max(kept.batches, default=-1))
                found.merge(kept.without(beyond.union(found.batches), places))
            except Exception as error:  # of safetensors, of the system, or of what a damaged file leads to
                raise InputError(
                    "a checkpoint of a calibration cannot be read",
                    at=str(path),
                    got=f"{type(error).__name__}: {error}",
                    hint="remove it, and its batches run again",
                ) from error
        self._digests = found.digests
        return found

    def digest_of(self, batch: Any) -> int | None:
        """Return what tells a batch from another one; None where nothing is kept of it."""
        return None if self._folder is None else batch_digest(batch)

    def check(self, index: int, batch: Any) -> None:
        """Compare a batch with the one that an earlier run has observed.

        Raises:
            InputError: it is another one.
        """
        if batch_digest(batch) != self._digests[index]:
            raise InputError(
                "this batch is another one than that of an earlier run, whose records are in the checkpoint",
                at=f"calibration batch {index}, {self._folder}",
                expected="the data of that run in the same order",
                hint="give another folder for other data; data that is drawn anew in each run cannot be taken up",
            )

    def write(self, records: BatchRecords) -> None:
        """Write what this rank has observed so far: whole, or not at all."""
        if self._folder is None or not records.batches:
            return
        with writing("the checkpoint", self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            beside = self._folder / f".{self._own}.{os.getpid()}"
            beside.write_bytes(records.packed())
            beside.replace(self._folder / self._own)

    def remove(self) -> None:
        """Remove the files: all ranks have what is in them."""
        if self._folder is None:
            return
        self._ranks.compare("the end of calibrate", {})
        (self._folder / self._own).unlink(missing_ok=True)
        for path in self._before if self._ranks.rank == 0 else ():
            path.unlink(missing_ok=True)
