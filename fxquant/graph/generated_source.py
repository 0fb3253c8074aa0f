"""The source of generated code, which goes when its code does."""

from __future__ import annotations

import linecache
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from torch.fx import graph_module

GENERATED = "<eval_with_key>."
"""What the file name of generated code begins with where torch numbers it: such a name is given once."""

_unused: deque[str] = deque()
"""File names whose code is gone."""


def drop_source_with_code(forward: Callable[..., Any]) -> None:
    """Let the source of a generated function go when its code does.

    ``torch.fx`` keeps the source of each ``recompile``, for tracebacks, as long as the process lives: a model that is
    converted again and again would fill the memory. A frame of a traceback holds its code, and so its source stays.

    The entries are removed by the next call, not when the collector finds the code: that may be while ``linecache``
    goes through its own entries, to print a traceback.
    """
    with suppress(IndexError):
        while True:
            _remove(_unused.popleft())
    code = forward.__code__
    if code.co_filename.startswith(GENERATED):
        weakref.finalize(code, _unused.append, code.co_filename).atexit = False


def _remove(name: str) -> None:
    linecache.cache.pop(name, None)
    graph_module._loader.eval_cache.pop(name, None)
