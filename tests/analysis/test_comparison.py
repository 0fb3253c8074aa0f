from __future__ import annotations

import math

import pytest

from fxquant.analysis.comparison import WIDTH, Comparison, LayerComparison, Unmatched, sorted_by_harm
from fxquant.errors import UnknownNameError
from fxquant.measure.noise import Deviation


def row(name: str, lost: float, place: int = 0, fault: str = "", overrun: float = 0.0) -> LayerComparison:
    found = Deviation(sqnr=12.345, cosine=0.9, largest=0.25, lost=lost, channel=2)
    line = "/home/somebody/a/long/way/down/to/model.py:12"
    return LayerComparison(
        name, name, name, "conv", line, place, found, found, None, fault, f"cause of {name}", overrun
    )


QUIET = Deviation(math.inf, 1.0, 0.0, 0.0, 0)


def test_faults_come_first_then_what_loses_most() -> None:
    rows = [row("a", 0.1, 0), row("b", 1.0, 1, overrun=2), row("c", 0.0, 2, "wrong"), row("d", 1.0, 3, overrun=9)]
    assert [each.name for each in sorted_by_harm([*rows, row("e", 0.1, 4)])] == ["c", "d", "b", "a", "e"]


def test_the_table_names_the_first_and_fits_a_terminal() -> None:
    long = "backbone.layers." * 4 + "conv"
    found = Comparison(sorted_by_harm([row("quiet", 0.01), row(long, 0.5)]), QUIET, 3, (Unmatched("x", "why " * 40),))
    lines = str(found).splitlines()
    assert lines[2].startswith(f"…{long[-29:]}  50.0 %     12.3    12.3")
    assert lines[2].endswith("model.py:12")
    assert "2 layers, 3 batches; what the model returns: inf dB." in lines
    assert f"cause of {long}" in " ".join(str(found).split()).replace("- ", "-")
    assert any(line.startswith("not compared: x: why why") for line in lines)
    assert max(map(len, lines)) <= WIDTH


def test_every_fault_is_told() -> None:
    found = Comparison(sorted_by_harm([row("a", 0.1), row("b", 0.2, 1, "one"), row("c", 0.0, 2, "two")]), QUIET, 1)
    assert str(found).splitlines()[-2:] == ["b: one", "c: two"]


def test_of_many_faults_the_first_are_told() -> None:
    found = Comparison(sorted_by_harm([row(f"l{i}", 0.1, i, f"fault {i}") for i in range(12)]), QUIET, 1)
    assert "l4: fault 4" in str(found)
    assert "l5: fault 5" not in str(found)
    assert str(found).splitlines()[-2].startswith("12 layers differ by more than rounding explains; the first 5 are")


def test_rows_are_found_by_name_and_in_order() -> None:
    found = Comparison(sorted_by_harm([row("a", 0.1), row("b", 0.2)]), QUIET, 1)
    assert [each.name for each in found] == ["b", "a"]
    assert found["a"].harm == 0.1
    assert found.worst(1) == (found["b"],)
    assert len(found) == 2
    with pytest.raises(UnknownNameError) as refusal:
        found["bb"]
    assert str(refusal.value).splitlines() == [
        "no layer of that name was compared",
        "  got:      'bb'",
        "  hint:     did you mean 'b'?",
    ]


def test_many_rows_are_cut_in_print_and_whole_in_html() -> None:
    found = Comparison(sorted_by_harm([row(f"l{i}", 0.01 * i) for i in range(30)]), QUIET, 1)
    assert "and 10 more, each of which loses no more than these" in str(found)
    assert "l3 " not in str(found)
    assert found._repr_html_().count("<tr>") == 31


def test_html_is_escaped() -> None:
    assert "<b>" not in Comparison((row("<b>", 0.5),), QUIET, 1)._repr_html_()
