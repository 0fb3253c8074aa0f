"""The collectives of ranks that share work: each ends within a time limit, with an error that names rank and cause."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed

from fxquant.distributed.processes import Process
from fxquant.errors import RankError

POLL = 0.5
"""Seconds between two looks at whether a rank that has not answered has failed or ended."""
LONGEST_CAUSE = 500
"""Characters of an error that other ranks quote."""

_sessions: dict[str, int] = {}
"""Name of a group -> how often its ranks have met."""


class Ranks:
    """The processes of a group, and what they tell each other.

    Each call of a collective has two steps. In the first one every rank writes a short text to the store of the group,
    and waits for the texts of all others: here a rank that is missing is found out and named. In the second one tensors
    go through the group itself, as gloo sends them. Nothing is pickled.

    Args:
        group: A process group that sends tensors of the CPU; None: this process is alone.
        timeout: Seconds that a rank waits for the others in one collective.
        checkpoint: A folder for what each rank has observed; None: nothing is written.
    """

    def __init__(self, group: Any, timeout: float, checkpoint: Path | None) -> None:
        self.timeout, self.checkpoint = timeout, checkpoint
        self._group, self._step, self._sent = group, 0, 0
        self._processes: Sequence[Process] = ()
        self.rank, self.size = 0, 1
        if group is not None:
            self.rank, self.size = distributed.get_rank(group), distributed.get_world_size(group)
            name = str(group.group_name)
            _sessions[name] = _sessions.get(name, 0) + 1
            self._store = distributed.PrefixStore(f"fxquant/{_sessions[name]}", group.get_group_store())

    def meet(self, versions: Mapping[str, str]) -> None:
        """Wait until all ranks are here, and compare their versions.

        Raises:
            RankError: a rank is missing, or has another version.
        """
        own = Process.this()
        found = self.gather_text("share_work", json.dumps([own.host, own.pid, dict(versions)]))
        told = [json.loads(text) for text in found]
        self._processes = [Process(host, pid) for host, pid, _ in told]
        self.check_same("share_work", versions, [each for *_, each in told])

    def leave(self) -> None:
        """Wait until all ranks have come to the end."""
        self.gather_text("the end of share_work", "")

    def tell_failure(self, error: BaseException) -> None:
        """Let the other ranks know why this one ends."""
        if self.size > 1 and not isinstance(error, RankError):
            text = f"{type(error).__name__}: {error}"[:LONGEST_CAUSE]
            try:
                self._store.set(f"failed/{self.rank}", text)
            except RuntimeError:  # the store is gone with the rank that keeps it
                return
            if self.rank == 0:  # this process may keep the store: the others shall have read of it
                others = [f"knows/{rank}" for rank in range(1, self.size)]
                with suppress(RuntimeError, ConnectionError):
                    self._store.wait(others, timedelta(seconds=min(self.timeout, 5.0)))

    def compare(self, what: str, facts: Mapping[str, str]) -> None:
        """Compare facts, each a short text under its name, with those of all other ranks.

        Raises:
            RankError: a rank has another one; the message names the rank and the fact.
        """
        found = self.gather_text(what, json.dumps(dict(facts)))
        self.check_same(what, facts, [json.loads(text) for text in found])

    def check_same(self, what: str, facts: Mapping[str, str], told: Sequence[Mapping[str, str]]) -> None:
        """Raise an error for the first rank whose facts differ from those of most ranks."""
        for name in facts:
            values = [each.get(name, "") for each in told]
            usual = max(values, key=lambda value: (values.count(value), -values.index(value)))
            odd = next((rank for rank, value in enumerate(values) if value != usual), None)
            if odd is not None:
                nothing = values[odd] == ""
                raise RankError(
                    f"rank {odd} has no {name}" if nothing else f"rank {odd} has another {name} than the other ranks",
                    at=what,
                    got=None if nothing else values[odd],
                    expected=usual or f"no {name}, as the other ranks",
                    hint="all ranks give the same model, the same data in the same order and the same arguments",
                )

    def gather_text(self, what: str, text: str) -> list[str]:
        """Return the texts of all ranks, in their order.

        Args:
            what: What the ranks are about to do, for messages; it is the same in all of them.
            text: That of this rank; short.

        Raises:
            RankError: a rank has failed, has ended, does something else, or does not answer within the time limit.
        """
        if self.size == 1:
            return [text]
        step, self._step = self._step, self._step + 1
        keys = [f"{step}/{rank}" for rank in range(self.size)]
        try:
            self._store.set(keys[self.rank], json.dumps([what, text]))
            self._wait(keys, what)
            found = [json.loads(self._store.get(key)) for key in keys]
            if step > 1:  # whoever has written this step has read all of the last but one
                self._store.delete_key(f"{step - 2}/{self.rank}")
        except (distributed.DistNetworkError, ConnectionError) as error:
            raise self._error(
                "the store of the process group", 0, "it is gone, and so is the process that keeps it"
            ) from error
        for rank, (theirs, _) in enumerate(found):
            if theirs != what:
                raise self._error(what, rank, f"it is at another step: {theirs}")
        return [each for _, each in found]

    def gather_bytes(self, what: str, own: bytes) -> list[bytes]:
        """Return the bytes of all ranks, in their order; errors are those of ``gather_text``."""
        sizes = [int(size) for size in self.gather_text(what, str(len(own)))]
        if self.size == 1 or not max(sizes):
            return [own] * len(sizes)
        sent = torch.zeros(max(sizes), dtype=torch.uint8)
        if own:
            sent[: len(own)] = torch.frombuffer(bytearray(own), dtype=torch.uint8)
        found = [torch.empty_like(sent) for _ in sizes]
        self._finish(what, lambda: distributed.all_gather(found, sent, group=self._group, async_op=True))
        return [bytes(each[:size].numpy().data) for each, size in zip(found, sizes, strict=True)]

    def gather_tensor(self, what: str, own: Tensor) -> list[Tensor]:
        """Return the tensors of all ranks, in their order, without the first step: for what is sent thousands of times.

        Args:
            what: For messages.
            own: Of the CPU, of the same shape and dtype in each rank.

        Raises:
            RankError: a rank has failed, has ended, or does not answer within the time limit.
        """
        if self.size == 1:
            return [own]
        found = [torch.empty_like(own) for _ in range(self.size)]
        self._finish(what, lambda: distributed.all_gather(found, own, group=self._group, async_op=True))
        return found

    def reduce(self, what: str, values: Tensor, *, smallest: bool = False) -> Tensor:
        """Return the sum, or the smallest, of the values of all ranks, element by element.

        Args:
            what: For messages.
            values: Of the CPU, of the same shape and dtype in each rank: int64 for sums, which are exact then.
            smallest: Take the smallest and no sum.

        Raises:
            RankError: as ``gather_text``; or the shapes differ.
        """
        if self.size == 1:
            return values
        self.compare(what, {"shape": f"{values.dtype} {list(values.shape)}"})
        result, how = values.clone(), distributed.ReduceOp.MIN if smallest else distributed.ReduceOp.SUM
        self._finish(what, lambda: distributed.all_reduce(result, how, group=self._group, async_op=True))
        return result

    def _finish(self, what: str, start: Any) -> None:
        """Start to send tensors, and wait until that is done. Who waits for long says so, which tells who hangs."""
        self._sent += 1
        deadline, work = time.monotonic() + self.timeout, None
        while True:
            left = deadline - time.monotonic()
            try:
                work = work or start()
                work.wait(timedelta(seconds=max(0.01, min(POLL, left))))
                return
            except RuntimeError as error:
                broken = work is None or work.is_completed()
                if broken:
                    time.sleep(POLL)  # a rank that has just been killed has not ended yet
                absent = self._absent(f"waits/{self._sent}")
                for rank in range(self.size) if broken else absent:
                    if rank != self.rank and (cause := self._cause(rank)):
                        raise self._error(what, rank, cause) from error
                if not broken and left > 0:
                    continue
                if absent and not broken:
                    raise self._error(what, absent[0], _no_answer(self.timeout)) from error
                raise RankError(
                    f"{what}: tensors did not come through the process group",
                    got=str(error).splitlines()[0][:LONGEST_CAUSE],
                    expected=f"those of {self.size} ranks within {self.timeout:g} s",
                ) from error

    def _absent(self, key: str) -> list[int]:
        """Say that this rank waits, and return the other ranks that have not said it."""
        others = [rank for rank in range(self.size) if rank != self.rank]
        with suppress(RuntimeError, ConnectionError):  # the store is gone with the rank that keeps it
            self._store.set(f"{key}/{self.rank}", "")
            return [rank for rank in others if not self._store.check([f"{key}/{rank}"])]
        return others

    def _wait(self, keys: Sequence[str], what: str) -> None:
        deadline = time.monotonic() + self.timeout
        while True:
            left = deadline - time.monotonic()
            try:
                self._store.wait(list(keys), timedelta(seconds=max(0.01, min(POLL, left))))
                return
            except distributed.DistNetworkError:
                raise
            except RuntimeError:  # of several classes, in stores of several kinds
                missing = [rank for rank, key in enumerate(keys) if not self._store.check([key])]
            for rank in missing:
                if cause := self._cause(rank):
                    raise self._error(what, rank, cause)
            if missing and time.monotonic() >= deadline:
                raise self._error(what, missing[0], _no_answer(self.timeout))

    def _cause(self, rank: int) -> str:
        """Return why a rank will not answer any more; empty while it may."""
        failed = f"failed/{rank}"
        with suppress(RuntimeError, ConnectionError):
            if self._store.check([failed]):
                text = self._store.get(failed).decode()
                self._store.set(f"knows/{self.rank}", "")
                return str(text)
        process = self._processes[rank] if self._processes else None
        return "" if process is None or process.may_run() else f"its process {process.pid} has ended"

    def _error(self, what: str, rank: int, cause: str) -> RankError:
        keeps = f"{self.checkpoint} keeps what each rank has observed, and the next run goes on there"
        return RankError(
            f"rank {rank} does not go on, so the {self.size} ranks cannot finish together",
            at=what,
            got=f"rank {rank}: " + cause.replace("\n", "\n            "),
            expected=f"an answer within {self.timeout:g} s",
            hint=keeps if self.checkpoint else "share_work(checkpoint=folder) keeps what each rank has observed",
        )


def _no_answer(timeout: float) -> str:
    return f"no answer for {timeout:g} s: it hangs, or is not there"
