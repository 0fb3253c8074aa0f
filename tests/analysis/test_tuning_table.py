"""The table of a tuning, and the reasons that it gives."""

from __future__ import annotations

import pickle

from fxquant.analysis.tuning_table import Tuning, TuningRow
from fxquant.measure.coverage import Coverage

ROWS = (
    TuningRow("conv", "features.0", "conv", 12.34, 100.0, 8.0, "int8"),
    TuningRow("add", "", "add", 5.0, 4.0, 1.0, "float"),
    TuningRow("relu", "a" * 45 + ".act", "relu", 1.0, 2.0, 3.0, "float"),
)
TUNING = Tuning(ROWS, Coverage(()), 2, 1.5, 0.75, 0.5)


def test_rows():
    assert tuple(TUNING) == ROWS
    assert len(TUNING) == 3
    assert TUNING.in_float == ROWS[1:]


def test_the_reason_holds_what_was_measured():
    assert [row.reason for row in ROWS] == [
        "",
        "measured: 5.0 µs in int8, 4.0 µs in float",
        "measured: 1.0 µs in int8, 2.0 µs in float; borders (up to 3.0 µs) cost more",
    ]


def test_the_table():
    assert str(TUNING).splitlines() == [
        "unit                                      pattern      int8 µs    float µs    borders µs  runs as",
        "----------------------------------------  ---------  ---------  ----------  ------------  ---------",
        "features.0                                conv            12.3       100.0           8.0  int8",
        "add                                       add              5.0         4.0           1.0  float",
        "…aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.act  relu             1.0         2.0           3.0  float",
        "3 units measured on 2 threads, 2 stay float. The whole model: float 1.500 ms, all in int8 0.750 ms, "
        "tuned 0.500 ms; tuned is 3.00 times as fast as float.",
    ]


def test_it_can_be_pickled():
    assert pickle.loads(pickle.dumps(TUNING)) == TUNING
