"""The source of generated code: how names that are keywords stand in it, and that it goes when its code does."""

from __future__ import annotations

import keyword
import linecache
import re
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from torch.fx import Graph, graph_module

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


@contextmanager
def with_getattr_for_keywords(graph: Graph) -> Iterator[None]:
    """Have ``getattr(self, "in")`` in code that is generated inside the block, where torch.fx writes ``self.in``.

    It does so itself for names that are no identifiers; a keyword of Python is one.
    """
    spelled: dict[str, str] = {}
    for node in graph.nodes:
        if node.op in ("call_module", "get_attr") and any(map(keyword.iskeyword, names := node.target.split("."))):
            spelled[_spelling(names, str.isidentifier)] = _spelling(names, _is_attribute)
    if not spelled:
        yield
        return
    pattern = re.compile(rf"(?<![\w.])({'|'.join(map(re.escape, spelled))})(?![\w.])")

    def make(before: Callable[[list[str]], list[str]] | None) -> Callable[[list[str]], list[str]]:
        def transformed(body: list[str]) -> list[str]:
            lines = body if before is None else before(body)
            return [pattern.sub(lambda found: spelled[found[1]], line) for line in lines]

        return transformed

    with graph.on_generate_code(make):
        yield


def _is_attribute(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name)


def _spelling(names: list[str], is_attribute: Callable[[str], bool]) -> str:
    """Write a path from ``self`` as torch.fx does."""
    found = "self"
    for name in names:
        found = f"{found}.{name}" if is_attribute(name) else f'getattr({found}, "{name}")'
    return found
