"""What was tried to make a graph of a part of a model, and what became of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from fxquant.errors import UnknownNameError
from fxquant.registry import did_you_mean

WAYS = ("auto", "fx", "export")
FX, EXPORT = "torch.fx", "torch.export"


@dataclass(frozen=True, slots=True)
class Capture:
    """One attempt to make a graph of a model or of one of its submodules."""

    path: str
    """Path of the submodule; empty for the model itself."""
    by: str
    """``"torch.fx"`` or ``"torch.export"``."""
    error: str = ""
    """Why it failed; empty if it did not."""
    fixed: tuple[str, ...] = ()
    """Conditions on sizes that the graph needs, and the module does not: ``"x.size()[1] == 5"``."""


def check_way(how: object) -> None:
    """Refuse a ``capture=`` that is none of the three.

    Raises:
        UnknownNameError: it is something else.
    """
    if how not in WAYS:
        hint = did_you_mean(how, WAYS) if isinstance(how, str) else ""
        raise UnknownNameError("unknown way to capture", got=repr(how), expected=", ".join(WAYS), hint=hint)


def captured_sentences(captures: Iterable[Capture]) -> Iterator[str]:
    """Write, for each part that torch.fx cannot trace, what made its graph in the end, and what failed before."""
    parts: dict[str, list[Capture]] = {}
    for one in captures:
        parts.setdefault(one.path, []).append(one)
    of_model = parts.pop("", [])
    if any(not one.error for one in of_model):
        yield f"The model was captured by {EXPORT}{_failures((*chain(*parts.values()), *of_model))}{_fixed(of_model)}."
        return
    for path, attempts in parts.items():
        done = any(not one.error for one in attempts)
        how = f"captured by {EXPORT}" if done else "not captured, and stays whole"
        yield f"{path!r} was {how}{_failures(attempts if done else (*attempts, *of_model))}{_fixed(attempts)}."


def _fixed(attempts: Iterable[Capture]) -> str:
    """Return which sizes are fixed, and how to keep them open."""
    conditions = [condition for one in attempts for condition in one.fixed]
    if not conditions:
        return ""
    return f", for {' and '.join(conditions)} alone; leaf_modules keeps a submodule whole, for any size"


def _failures(attempts: Iterable[Capture]) -> str:
    """Return what failed, in parentheses, each error once."""
    texts: dict[str, str] = {}
    for one in attempts:
        if one.error:
            where = f" of {one.path!r}" if one.path else ""
            texts.setdefault(one.error, f"{one.by}{where} failed: {one.error}")
    return f" ({'; '.join(texts.values())})" if texts else ""
