from __future__ import annotations

from fxquant.passes.snapshot import Snapshot


def test_title_counts_lines():
    snapshot = Snapshot(4, "annotate", before="a\nb", after="a\nc\nd", seconds=0.0031, step=2, steps=4)
    assert snapshot.changed
    assert snapshot.diff() == "- b\n+ c\n+ d"
    assert snapshot.title() == "[2/4] annotate  +2 -1  3.1 ms"


def test_nothing_changed():
    snapshot = Snapshot(0, "idle", before="a", after="a", seconds=0.0)
    assert not snapshot.changed
    assert snapshot.diff() == ""
    assert snapshot.title() == "[1/1] idle  +0 -0  0.0 ms"
