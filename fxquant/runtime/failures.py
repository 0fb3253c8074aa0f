"""What is said where a program could not be made: the graph gives the same results, so a warning does."""

from __future__ import annotations

from collections.abc import Sequence

from torch.fx import Node

from fxquant.errors import warn

_HINT = "results are right; please report the model. engine='graph' makes no programs"


def kind_and_words(error: Exception) -> str:
    """The class of an error, and the first line of what it says."""
    words = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def warn_of_dropped(why: str, nodes: Sequence[Node], error: Exception | None = None) -> None:
    """Warn that a part of the graph runs without its program.

    Args:
        why: What is wrong with the program.
        nodes: The part, in the order in which it runs.
        error: What was raised, if anything was.
    """
    names = [str(node.target) for node in nodes if node.op == "call_module"] or [node.name for node in nodes]
    warn(
        f"{why}, and was dropped: this part runs as a graph",
        at=names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}",
        got=None if error is None else kind_and_words(error),
        hint=_HINT,
    )


def warn_of_failed_plan(error: Exception) -> None:
    """Warn that the whole model runs as a graph on inputs of one shape."""
    warn("no programs could be made for inputs of this shape: the graph runs", got=kind_and_words(error), hint=_HINT)
