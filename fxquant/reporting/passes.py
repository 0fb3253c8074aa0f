"""Every pass as data: each line of text once, and the runs of lines that differ."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from fxquant.passes.instruments import Snapshot
from fxquant.passes.pipelines import CONVERT, FROM_TRAINING, PREPARE, TO_TRAINING

HELP = {
    item.name: (item.run.__doc__ or "").strip().partition("\n")[0].replace("``", "")
    for pipeline in (PREPARE, *CONVERT.values(), TO_TRAINING, FROM_TRAINING)
    for item in pipeline
}
"""Pass -> the first line of its docstring."""


def passes(snapshots: Iterable[Snapshot]) -> dict[str, Any]:
    """Return the texts of all snapshots without repetition.

    Returns:
        ``lines``: every distinct line. ``texts``: every distinct graph, as indices of lines. ``steps``: a row per pass,
        with the indices of the texts ``before`` and ``after`` it and, in ``changes``, ``(tag, i1, i2, j1, j2)`` as of
        ``difflib.SequenceMatcher.get_opcodes``, for whoever shows both side by side.
    """
    lines: dict[str, int] = {}
    texts: dict[str, int] = {}
    steps = []
    for snapshot in snapshots:
        before, after = (texts.setdefault(text, len(texts)) for text in (snapshot.before, snapshot.after))
        added, removed = snapshot.counts
        steps.append(
            {
                "name": snapshot.name,
                "step": f"{snapshot.step}/{snapshot.steps}",
                "help": HELP.get(snapshot.name, ""),
                "ms": round(snapshot.seconds * 1e3, 1),
                "added": added,
                "removed": removed,
                "before": before,
                "after": after,
                "changes": _changes(snapshot) if snapshot.changed else [],
            }
        )
    split = [[lines.setdefault(line, len(lines)) for line in text.splitlines()] for text in texts]
    return {"lines": list(lines), "texts": split, "steps": steps}


def _changes(snapshot: Snapshot) -> list[tuple[str, int, int, int, int]]:
    matcher = difflib.SequenceMatcher(None, snapshot.before.splitlines(), snapshot.after.splitlines(), autojunk=False)
    return list(matcher.get_opcodes())
