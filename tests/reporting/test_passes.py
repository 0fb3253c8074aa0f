from __future__ import annotations

import difflib

from fxquant.passes.instruments import Snapshot
from fxquant.reporting.passes import HELP, passes

A, B = "x = input\na = f(x)\nb = g(a)", "x = input\nb = h(x)"
SNAPSHOTS = (Snapshot(0, "normalize", A, A, 0.001), Snapshot(1, "mine", A, B, 0.0021, 2, 2))


def test_every_text_and_line_is_there_once() -> None:
    found = passes(SNAPSHOTS)
    assert found["lines"] == ["x = input", "a = f(x)", "b = g(a)", "b = h(x)"]
    assert found["texts"] == [[0, 1, 2], [0, 3]]
    assert [(step["before"], step["after"]) for step in found["steps"]] == [(0, 0), (0, 1)]


def test_steps_say_what_changed() -> None:
    quiet, busy = passes(SNAPSHOTS)["steps"]
    assert quiet["changes"] == []
    assert quiet["help"] == HELP["normalize"] != ""
    assert (busy["help"], busy["ms"], busy["added"], busy["removed"]) == ("", 2.1, 1, 2)
    assert busy["changes"] == difflib.SequenceMatcher(None, A.splitlines(), B.splitlines()).get_opcodes()


def test_every_pass_says_what_it_does() -> None:
    assert [name for name, text in HELP.items() if len(text) < 10] == []
