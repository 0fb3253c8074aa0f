from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

import fxquant as fxq
from fxquant.errors import InputError
from fxquant.reporting.measurements import tables


@dataclass
class Part:
    sqnr: float
    channel: int


@dataclass
class Row:
    unit: str
    module: str
    isolated: Part
    weight: Part | None
    times: dict[str, float]
    note: str = ""


@dataclass
class Found:
    rows: tuple[Row, ...]


def test_coverage_comes_first(calibrated: fxq.Quantizer) -> None:
    (table,) = tables(calibrated.coverage(), ())
    assert table["title"] == "Coverage"
    assert table["columns"] == ["unit", "becomes", "MACs", "% of MACs", "why not", "line"]
    assert table["numeric"] == [False, False, True, True, False, False]
    assert {row[0]: row[2] for row in table["rows"]}["log_softmax"] == "float"
    assert sum(row[4] for row in table["rows"]) == pytest.approx(100, abs=0.01)


def test_any_table_of_units_is_shown(calibrated: fxq.Quantizer) -> None:
    rows = (
        Row("relu", "conv", Part(12.34567, 3), None, {"int8": 1.5}),
        Row("head", "head", Part(math.inf, 0), Part(1.0, 1), {"int8": 2.0}),
    )
    _, table = tables(calibrated.coverage(), [Found(rows)])
    assert table["title"] == "Found"
    assert table["columns"] == ["isolated sqnr", "isolated channel", "times int8", "weight sqnr", "weight channel"]
    assert table["numeric"] == [True] * 5
    assert table["rows"] == [["relu", 12.346, 3, 1.5, None, None], ["head", "inf", 0, 2.0, 1.0, 1]]


def test_parity_and_comparison_are_such_tables(calibrated: fxq.Quantizer) -> None:
    batch = calibrated.example_args[0]
    parity = fxq.convert(calibrated, check=batch).parity
    compared = fxq.compare(calibrated, fxq.convert(calibrated), [batch], progress=False)
    _, first, second = tables(calibrated.coverage(), [parity, compared])
    assert {"isolated, dB", "accumulated, dB", "weight, dB", "simulation steps"} <= set(first["columns"])
    assert "isolated sqnr" in second["columns"]
    assert [row[0] for row in first["rows"]] == [row.unit for row in parity.rows]


def test_sensitivity_and_profile_are_such_tables(calibrated: fxq.Quantizer) -> None:
    batch = calibrated.example_args[0]
    measured = [fxq.sensitivity(calibrated, [batch], progress=False), fxq.profile(calibrated, batch)]
    _, costs, times = tables(calibrated.coverage(), measured)
    assert (costs["title"], times["title"]) == ("Sensitivity", "Profile")
    assert {row[0] for row in costs["rows"]} == {row.unit for row in measured[0].rows}
    assert "int8 us" in times["columns"]


def test_what_is_no_table_is_refused(calibrated: fxq.Quantizer) -> None:
    with pytest.raises(InputError) as refusal:
        tables(calibrated.coverage(), [{"relu": 3}])
    assert str(refusal.value) == (
        "this is no table of measurements\n"
        "  got:      dict\n"
        "  expected: what compare, sensitivity or profile gave, or the parity of a converted model"
    )
    with pytest.raises(InputError, match="rows of this table name no unit"):
        tables(calibrated.coverage(), [Found((Part(1.0, 2),))])  # type: ignore[arg-type]
