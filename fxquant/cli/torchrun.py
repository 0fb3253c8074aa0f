"""Commands that ``torchrun`` starts in several processes: one process group, and one process that prints and writes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from datetime import timedelta

from torch import distributed

from fxquant.distributed.sharing import TIMEOUT

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""The environment that ``torchrun`` makes."""


@contextmanager
def started_by_torchrun() -> Iterator[int]:
    """Join the process group that ``torchrun`` has started this process for, over gloo, and yield the rank.

    Ranks other than 0 print nothing on the standard output. Without that environment nothing is initialized, and the
    rank is 0.
    """
    if not all(name in os.environ for name in VARIABLES) or int(os.environ["WORLD_SIZE"]) < 2:
        yield 0
        return
    distributed.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT))
    try:
        rank = distributed.get_rank()
        with open(os.devnull, "w") as nowhere, redirect_stdout(sys.stdout if rank == 0 else nowhere):
            yield rank
    finally:
        distributed.destroy_process_group()
