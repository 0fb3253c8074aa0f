"""``share_work``: inside it, calls divide their work among the ranks of a process group."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from fxquant.commandline import VERSION
from fxquant.distributed.ranks import Ranks
from fxquant.errors import InputError

_ACTIVE: ContextVar[Ranks | None] = ContextVar("fxquant_ranks", default=None)

TIMEOUT = 300.0
"""Seconds."""


@contextmanager
def share_work(
    group: Any = None, *, timeout: float = TIMEOUT, checkpoint: str | os.PathLike[str] | None = None
) -> Iterator[Ranks]:
    """Divide the work of the calls inside among the ranks of a process group; each rank ends as one process would.

    All ranks enter it, and make the same calls in it with the same arguments: the same model, and the same data in the
    same order. ``calibrate`` and ``sensitivity`` then run each batch in one rank. What a batch gave goes to all ranks,
    and each of them adds it up in the order of the batches, so that results have the same bits in each rank, and those
    of one process. A list of batches and a ``DataLoader`` are read in part by each rank, other data by all of them.

    Without a process group, and outside of ``group``, calls work as they do without it. Nothing is initialized.

    Args:
        group: A process group of ``torch.distributed`` that sends tensors of the CPU (gloo); None: the default one.
        timeout: Seconds that a rank waits for the others where they exchange results. A share of the work may take
            that much longer in one rank than in another.
        checkpoint: A folder that all ranks can write to, in which each keeps what it has observed in ``calibrate``: a
            run that finds it goes on there, in any number of ranks, with the same bits, if its data is the same. A run
            that succeeds removes its files.

    Raises:
        InputError: ``timeout`` is no time, or the group sends no tensors of the CPU.
        RankError: another rank dies, hangs, fails, has no data, or another model, other data or another version. The
            message names the rank and the cause, in each rank, within ``timeout``.

    Example:
        >>> import torch, fxquant
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2)).eval()
        >>> data = [torch.randn(8, 4) for _ in range(4)]
        >>> with fxquant.share_work():
        ...     prepared = fxquant.calibrate(fxquant.prepare(model, data[0]), data, progress=False)
    """
    if not isinstance(timeout, (int, float)) or not timeout > 0:
        raise InputError("timeout is no time", got=repr(timeout), expected="seconds, above 0")
    folder = None if checkpoint is None else Path(checkpoint)
    ranks = Ranks(_usable(group), float(timeout), folder)
    token = _ACTIVE.set(ranks if ranks.size > 1 or folder is not None else None)
    try:
        ranks.meet({"version of fxquant": VERSION, "version of torch": torch.__version__, "CPU": platform.machine()})
        yield ranks
        ranks.leave()
    except BaseException as error:
        ranks.tell_failure(error)
        raise
    finally:
        _ACTIVE.reset(token)


def active_ranks() -> Ranks | None:
    """Return the ranks that share the work of this call; None where this process does all of it."""
    return _ACTIVE.get()


def _usable(group: Any) -> Any:
    if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_rank(group) < 0:
        return None
    backend = str(distributed.get_backend(group))
    if not any(name in backend for name in ("gloo", "mpi")):
        raise InputError(
            "this process group sends no tensors of the CPU",
            got=backend,
            expected="gloo",
            hint='share_work(torch.distributed.new_group(backend="gloo"))',
        )
    return distributed.group.WORLD if group is None else group
