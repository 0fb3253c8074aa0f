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


def test_notebooks_show_the_diff():
    shown = Snapshot(0, "mine", "a = f(<x>)\nb", "a = g(<x>)\nb", 0.001)._repr_html_()
    assert "[1/1] mine  +1 -1  1.0 ms" in shown
    assert '<span style="color: #c45500">- a = f(&lt;x&gt;)</span>' in shown
    assert '<span style="color: #0072b2">+ a = g(&lt;x&gt;)</span>' in shown
    assert "(nothing)" in Snapshot(0, "mine", "a", "a", 0.001)._repr_html_()
